#include "ops/moment_loss.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/token_moments.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MomentLoss : torch::autograd::Function<MomentLoss> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& moments,
                               const ops::MomentTargets& wanted) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto found = ops::moment_loss(moments, wanted);
    ctx->save_for_backward({moments});
    ctx->saved_data["targets"] = at::ArrayRef<double>(wanted.targets).vec();
    ctx->saved_data["weights"] = at::ArrayRef<double>(wanted.weights).vec();
    ctx->mark_non_differentiable({found.mean, found.variance, found.skewness, found.kurtosis});
    return {found.loss, found.mean, found.variance, found.skewness, found.kurtosis};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("moment_loss");
    using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, at::ArrayRef<double>,
                                 at::ArrayRef<double>);
    static auto op = detail::op_handle<Signature>("torchvq::moment_loss_backward");
    return {op.call(grads[0], ctx->get_saved_variables()[0],
                    ctx->saved_data["targets"].toDoubleVector(),
                    ctx->saved_data["weights"].toDoubleVector()),
            at::Tensor()};
  }
};

detail::MomentLossTensors moment_loss(const at::Tensor& moments, at::ArrayRef<double> targets,
                                      at::ArrayRef<double> weights) {
  detail::check_moment_loss(moments, targets, weights);
  ops::MomentTargets wanted{};
  std::copy(targets.begin(), targets.end(), wanted.targets.begin());
  std::copy(weights.begin(), weights.end(), wanted.weights.begin());
  const auto found = detail::differentiable<MomentLoss>(moments, wanted);
  return {found[0], found[1], found[2], found[3], found[4]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("moment_loss", moment_loss); }

}  // namespace torchvq
