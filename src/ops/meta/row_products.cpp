#include "ops/row_products.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor row_products(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& offset) {
  detail::check_row_products(x, matrix, offset);
  return x.new_empty_symint({x.sym_size(0), matrix.sym_size(1)});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("row_products", row_products); }

}  // namespace torchvq
