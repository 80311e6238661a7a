#include "ops/token_moment_loss.h"

#include <torch/library.h>

#include <torchvq/ops/token_moment_loss.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/precision.h"
#include "ops/token_moments.h"

namespace torchvq {

namespace detail {

void check_token_moment_loss(const at::Tensor& x, at::ArrayRef<double> targets,
                             at::ArrayRef<double> weights, const std::optional<at::Tensor>& mask) {
  check_token_moments(x, mask);
  TORCH_CHECK_VALUE(targets.size() == 4 && weights.size() == 4,
                    "token_moment_loss: expected 4 targets and weights, but got ", targets.size(),
                    " and ", weights.size());
}

void check_token_moment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                      const at::Tensor& moments, at::ArrayRef<double> targets,
                                      at::ArrayRef<double> weights,
                                      const std::optional<at::Tensor>& mask) {
  constexpr auto op = "token_moment_loss_backward";
  check_token_moment_loss(x, targets, weights, mask);
  check_dtype(op, "grad", grad, value_dtype(x, x));
  check_rank(op, "grad", grad, 0, "()");
  check_same_device(op, "x", x, "grad", grad);
  check_dtype(op, "moments", moments, sum_dtype(x));
  check_same_device(op, "x", x, "moments", moments);
  check_rank(op, "moments", moments, 1, "(1 + 4 D,)");
  check_size(op, "moments", moments, 0, 1 + 4 * x.sym_size(-1), "moments of x");
}

TokenMomentLossTensors call_token_moment_loss(const at::Tensor& x, at::ArrayRef<double> targets,
                                              at::ArrayRef<double> weights,
                                              const std::optional<at::Tensor>& mask) {
  static auto op = op_handle<decltype(call_token_moment_loss)>("torchvq::token_moment_loss");
  return op.call(x, targets, weights, mask);
}

}  // namespace detail

ops::MomentLoss ops::token_moment_loss(const at::Tensor& x, const MomentTargets& wanted,
                                       const std::optional<at::Tensor>& mask) {
  auto [loss, mean, variance, skewness, kurtosis, moments] =
      detail::call_token_moment_loss(x, wanted.targets, wanted.weights, mask);
  return {loss, mean, variance, skewness, kurtosis};
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "token_moment_loss(Tensor x, float[] targets, float[] weights, *, Tensor? mask=None) "
      "-> (Tensor loss, Tensor mean, Tensor variance, Tensor skewness, Tensor kurtosis, "
      "Tensor moments)");
  // The gradient of x; private, called only by autograd.
  m.def(
      "token_moment_loss_backward(Tensor grad, Tensor x, Tensor moments, float[] targets, "
      "float[] weights, Tensor? mask) -> Tensor");
}
