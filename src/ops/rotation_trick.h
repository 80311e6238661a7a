// Argument checks of rotation_trick and its backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_rotation_trick(const at::Tensor& x, const at::Tensor& codes);
void check_rotation_trick_backward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& codes);

}  // namespace torchvq::detail
