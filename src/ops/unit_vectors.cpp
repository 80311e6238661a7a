#include <torchvq/ops/unit_vectors.h>

#include <utility>

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

void check_unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& units) {
  constexpr auto op = "unit_vectors_backward";
  check_floating(op, "grad", grad);
  check_floating(op, "x", x);
  check_dtype(op, "units", units, compute_dtype(x));
  TORCH_CHECK_VALUE(x.dim() >= 1, op,
                    ": expected x to have at least 1 dimension (..., D), but got shape ",
                    x.sym_sizes());
  for (const auto& [name, tensor] : {std::pair{"grad", &grad}, {"units", &units}}) {
    TORCH_CHECK_VALUE(tensor->sym_sizes() == x.sym_sizes(), op, ": expected ", name,
                      " to have the shape of x, ", x.sym_sizes(), ", but got ",
                      tensor->sym_sizes());
    check_same_device(op, "x", x, name, *tensor);
  }
}

}  // namespace detail

namespace ops {

at::Tensor unit_vectors(const at::Tensor& x) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&)>("torchvq::unit_vectors");
  return op.call(x);
}

at::Tensor unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& units) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&);
  static auto op = detail::op_handle<Signature>("torchvq::unit_vectors_backward");
  return op.call(grad, x, units);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("unit_vectors(Tensor x) -> Tensor");
  m.def("unit_vectors_backward(Tensor grad, Tensor x, Tensor units) -> Tensor");
}
