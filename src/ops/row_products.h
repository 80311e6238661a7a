// Argument checks of row_products, called by every kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_row_products(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& offset);

}  // namespace torchvq::detail
