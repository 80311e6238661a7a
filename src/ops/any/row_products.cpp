// Any device: torch's product, the reference for the CPU kernel.
#include "ops/row_products.h"

#include <ATen/ops/addmm.h>
#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor row_products(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& offset) {
  detail::check_row_products(x, matrix, offset);
  return at::addmm(offset, x, matrix);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("row_products", row_products); }

}  // namespace torchvq
