#include <torchvq/ops/sign_entropy.h>

#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/no_gradient.h"
#include "ops/autograd/precomputed_gradients.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SignEntropy : torch::autograd::Function<SignEntropy> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, double sharpness,
                               const std::optional<at::Tensor>& mask,
                               const std::optional<at::Tensor>& totals, bool wanted) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [per_sample, batch, grad_per_sample, grad_batch] =
        ops::sign_entropy_forward(x, sharpness, mask, totals, wanted);
    ctx->save_for_backward({grad_per_sample, grad_batch});
    ctx->set_materialize_grads(false);
    ctx->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return {per_sample, batch, grad_per_sample, grad_batch};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& upstream) {
    constexpr auto op = "sign_entropy";
    if (upstream[2].defined() || upstream[3].defined()) detail::throw_twice_differentiated(op);
    detail::check_once_differentiable(op);
    const auto saved = ctx->get_saved_variables();
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    at::Tensor grad;
    for (size_t i = 0; i < 2; ++i) {
      if (!upstream[i].defined()) continue;
      const auto own = saved[i] * upstream[i];
      grad = grad.defined() ? grad + own : own;
    }
    if (grad.defined()) grad = grad.to(dtype);
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// Below a level of torch.func, this is what calls meet.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> sign_entropy_forward(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& totals, bool wanted) {
  const auto outputs = detail::differentiable<SignEntropy>(x, sharpness, mask, totals,
                                                           wanted || detail::wants_gradient(x));
  return {outputs[0], outputs[1], outputs[2], outputs[3]};
}

std::tuple<at::Tensor, at::Tensor> sign_entropy(const at::Tensor& x, double sharpness,
                                                const std::optional<at::Tensor>& mask,
                                                const std::optional<at::Tensor>& totals) {
  const auto found = sign_entropy_forward(x, sharpness, mask, totals, /*wanted=*/false);
  return {std::get<0>(found), std::get<1>(found)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("sign_entropy", sign_entropy);
  m.impl("sign_entropy_forward", sign_entropy_forward);
  m.impl("sign_entropy_totals",
         torch::CppFunction::makeFromBoxedFunction<&detail::run_without_gradient>());
}

}  // namespace torchvq
