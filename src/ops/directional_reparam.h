// Argument checks of directional_reparam and its backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_directional_reparam(const at::Tensor& x, const at::Tensor& codes,
                               const at::Tensor& noise, double variance);
void check_directional_reparam_backward(const at::Tensor& grad, const at::Tensor& x,
                                        const at::Tensor& codes, const at::Tensor& noise,
                                        double variance);

}  // namespace torchvq::detail
