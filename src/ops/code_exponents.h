// Argument checks of code_exponents, called by every kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_code_exponents(const at::Tensor& codebook);

}  // namespace torchvq::detail
