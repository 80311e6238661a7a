#include "ops/moment_loss.h"

#include <torch/library.h>

#include <torchvq/ops/token_moments.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"

namespace torchvq {

void detail::check_moment_loss(const at::Tensor& moments, at::ArrayRef<double> targets,
                               at::ArrayRef<double> weights) {
  constexpr auto op = "moment_loss";
  check_floating(op, "moments", moments);
  TORCH_CHECK_VALUE(moments.dim() == 2 && moments.sym_size(1) % 4 == 1, op,
                    ": expected moments to have shape (W, 1 + 4 D), but got ", moments.sym_sizes());
  TORCH_CHECK_VALUE(targets.size() == 4 && weights.size() == 4, op,
                    ": expected 4 targets and weights, but got ", targets.size(), " and ",
                    weights.size());
}

void detail::check_moment_loss_backward(const at::Tensor& grad, const at::Tensor& moments,
                                        at::ArrayRef<double> targets,
                                        at::ArrayRef<double> weights) {
  constexpr auto op = "moment_loss_backward";
  check_moment_loss(moments, targets, weights);
  check_floating(op, "grad", grad);
  check_rank(op, "grad", grad, 0, "()");
}

ops::MomentLoss ops::moment_loss(const at::Tensor& moments, const MomentTargets& wanted) {
  using Signature =
      detail::MomentLossTensors(const at::Tensor&, at::ArrayRef<double>, at::ArrayRef<double>);
  static auto op = detail::op_handle<Signature>("torchvq::moment_loss");
  auto [loss, mean, variance, skewness, kurtosis] =
      op.call(moments, wanted.targets, wanted.weights);
  return {loss, mean, variance, skewness, kurtosis};
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "moment_loss(Tensor moments, float[] targets, float[] weights) -> (Tensor loss, Tensor mean, "
      "Tensor variance, Tensor skewness, Tensor kurtosis)");
  // The gradient of moments; private, called only by autograd.
  m.def(
      "moment_loss_backward(Tensor grad, Tensor moments, float[] targets, float[] weights) -> "
      "Tensor");
}
