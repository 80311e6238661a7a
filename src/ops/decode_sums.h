// Argument checks of decode_sums, called by every kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype);

}  // namespace torchvq::detail
