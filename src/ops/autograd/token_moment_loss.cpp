#include "ops/token_moment_loss.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;
using Numbers = at::ArrayRef<double>;

struct TokenMomentLoss : torch::autograd::Function<TokenMomentLoss> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, Numbers targets,
                               Numbers weights, const OptionalTensor& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [loss, mean, variance, skewness, kurtosis, moments] =
        detail::call_token_moment_loss(x, targets, weights, mask);
    ctx->save_for_backward({x, moments, mask.value_or(at::Tensor())});
    ctx->saved_data["targets"] = targets.vec();
    ctx->saved_data["weights"] = weights.vec();
    ctx->mark_non_differentiable({mean, variance, skewness, kurtosis, moments});
    ctx->set_materialize_grads(false);
    return {loss, mean, variance, skewness, kurtosis, moments};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("token_moment_loss");
    const auto none = at::Tensor();
    if (!grads[0].defined()) return {none, none, none, none};
    using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, Numbers,
                                 Numbers, const OptionalTensor&);
    static auto op = detail::op_handle<Signature>("torchvq::token_moment_loss_backward");
    const auto saved = ctx->get_saved_variables();
    const auto mask = saved[2].defined() ? OptionalTensor(saved[2]) : std::nullopt;
    return {op.call(grads[0], saved[0], saved[1], ctx->saved_data["targets"].toDoubleVector(),
                    ctx->saved_data["weights"].toDoubleVector(), mask),
            none, none, none};
  }
};

detail::TokenMomentLossTensors token_moment_loss(const at::Tensor& x, Numbers targets,
                                                 Numbers weights, const OptionalTensor& mask) {
  const auto found = detail::differentiable<TokenMomentLoss>(x, targets, weights, mask);
  return {found[0], found[1], found[2], found[3], found[4], found[5]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("token_moment_loss", token_moment_loss); }

}  // namespace torchvq
