#include "ops/row_products.h"

#include <torch/library.h>

#include <torchvq/ops/row_products.h>

#include "detail/checks.h"
#include "detail/op_handle.h"

namespace torchvq {

void detail::check_row_products(const at::Tensor& x, const at::Tensor& matrix,
                                const at::Tensor& offset) {
  constexpr auto op = "row_products";
  const auto dtype = x.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                   ": expected x to be float32 or float64, but got ", dtype);
  check_dtype(op, "matrix", matrix, dtype);
  check_dtype(op, "offset", offset, dtype);
  check_rank(op, "x", x, 2, "(N, D)");
  check_rank(op, "matrix", matrix, 2, "(D, M)");
  check_rank(op, "offset", offset, 1, "(M,)");
  check_size(op, "matrix", matrix, 0, x.sym_size(1), "features of x");
  check_size(op, "offset", offset, 0, matrix.sym_size(1), "columns of matrix");
  check_same_device(op, "x", x, "matrix", matrix);
  check_same_device(op, "x", x, "offset", offset);
}

at::Tensor ops::row_products(const at::Tensor& x, const at::Tensor& matrix,
                             const at::Tensor& offset) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&);
  static auto op = detail::op_handle<Signature>("torchvq::row_products");
  return op.call(x, matrix, offset);
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("row_products(Tensor x, Tensor matrix, Tensor offset) -> Tensor");
}
