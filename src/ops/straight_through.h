// Argument checks of straight_through.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_straight_through(const at::Tensor& x, const at::Tensor& codes);

}  // namespace torchvq::detail
