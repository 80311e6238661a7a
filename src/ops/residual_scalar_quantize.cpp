#include "ops/residual_scalar_quantize.h"

#include <torch/library.h>

#include <torchvq/ops/residual_scalar_quantize.h>

#include "detail/backward_checks.h"
#include "detail/checks.h"
#include "detail/op_handle.h"

namespace torchvq {

namespace detail {

ScalarBound check_residual_scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                           const at::Tensor& scales, std::string_view bound_name) {
  constexpr auto op = "residual_scalar_quantize";
  check_floating(op, "x", x);
  check_floating(op, "scales", scales);
  const auto bound = scalar_bound(op, bound_name);
  TORCH_CHECK_VALUE(is_symmetric(bound), op,
                    ": expected bound to be symmetric_tanh or symmetric_clamp, but got ",
                    bound_name);
  check_scalar_levels(op, levels, 2);
  const auto dim = static_cast<int64_t>(levels.size());
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == dim, op, ": expected x to have ", dim,
                    " features, one per number of levels, but got shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(scales.dim() == 2 && scales.sym_size(0) >= 1 && scales.sym_size(1) == dim, op,
                    ": expected scales to have shape (Q, ", dim, "), Q at least 1, but got shape ",
                    scales.sym_sizes());
  return bound;
}

ScalarBound check_residual_scalar_quantize_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    at::IntArrayRef levels,
                                                    const at::Tensor& scales,
                                                    std::string_view bound_name) {
  const auto bound = check_residual_scalar_quantize(x, levels, scales, bound_name);
  check_same_shape("residual_scalar_quantize_backward", "grad", grad, "x", x);
  return bound;
}

}  // namespace detail

namespace ops {

std::pair<at::Tensor, at::Tensor> residual_scalar_quantize(const at::Tensor& x,
                                                           at::IntArrayRef levels,
                                                           const at::Tensor& scales,
                                                           const std::string& bound) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, at::IntArrayRef,
                                                       const at::Tensor&, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::residual_scalar_quantize");
  auto [quantized, indices] = op.call(x, levels, scales, bound);
  return {quantized, indices};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_scalar_quantize(Tensor x, int[] levels, Tensor scales, *, "
      "str bound='symmetric_clamp') -> (Tensor quantized, Tensor indices)");
  // The gradient of x; private, called only by autograd.
  m.def(
      "residual_scalar_quantize_backward(Tensor grad, Tensor x, int[] levels, Tensor scales, "
      "str bound) -> Tensor");
}
