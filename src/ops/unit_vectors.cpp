#include <torchvq/ops/unit_vectors.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "ops/unit_vectors.h"

namespace torchvq {

namespace detail {

void check_unit_vectors(const at::Tensor& x) {
  check_floating("unit_vectors", "x", x);
  TORCH_CHECK_VALUE(
      x.dim() >= 1,
      "unit_vectors: expected x to have at least 1 dimension (..., D), but got shape ",
      x.sym_sizes());
}

}  // namespace detail

namespace ops {

at::Tensor unit_vectors(const at::Tensor& x) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&)>("torchvq::unit_vectors");
  return op.call(x);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) { m.def("unit_vectors(Tensor x) -> Tensor"); }
