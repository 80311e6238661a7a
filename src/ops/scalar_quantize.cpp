#include "ops/scalar_quantize.h"

#include <tuple>

#include <torch/library.h>

#include <torchvq/ops/scalar_quantize.h>

#include "detail/backward_checks.h"
#include "detail/checks.h"
#include "detail/op_handle.h"

namespace torchvq {

namespace detail {

ScalarBound check_scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                  std::string_view bound_name) {
  constexpr auto op = "scalar_quantize";
  check_floating(op, "x", x);
  const auto bound = scalar_bound(op, bound_name);
  check_scalar_levels(op, levels, is_symmetric(bound) ? 2 : 3);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == static_cast<int64_t>(levels.size()), op,
                    ": expected x to have ", levels.size(),
                    " features, one per number of levels, but got shape ", x.sym_sizes());
  return bound;
}

ScalarBound check_scalar_quantize_backward(const at::Tensor& grad, const at::Tensor& x,
                                           at::IntArrayRef levels, std::string_view bound_name) {
  const auto bound = check_scalar_quantize(x, levels, bound_name);
  check_same_shape("scalar_quantize_backward", "grad", grad, "x", x);
  return bound;
}

}  // namespace detail

namespace ops {

std::pair<at::Tensor, at::Tensor> scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                                  const std::string& bound) {
  using Signature =
      std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, at::IntArrayRef, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_quantize");
  auto [codes, indices] = op.call(x, levels, bound);
  return {codes, indices};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "scalar_quantize(Tensor x, int[] levels, *, str bound='tanh') "
      "-> (Tensor codes, Tensor indices)");
  // The gradient of x; private, called only by autograd.
  m.def("scalar_quantize_backward(Tensor grad, Tensor x, int[] levels, str bound) -> Tensor");
}
