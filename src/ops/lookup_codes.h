// Argument checks of lookup_codes, called by every kernel, so that every path to
// a raw pointer is checked.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_lookup_codes(const at::Tensor& codebook, const at::Tensor& indices);

}  // namespace torchvq::detail
