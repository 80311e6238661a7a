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
    ctx->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return {per_sample, batch};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& upstream) {
    detail::check_once_differentiable("sign_entropy");
    const auto saved = ctx->get_saved_variables();
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const auto grad = saved[0] * upstream[0] + saved[1] * upstream[1];
    return {grad.to(dtype), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> sign_entropy(const at::Tensor& x, double sharpness,
                                                const std::optional<at::Tensor>& mask,
                                                const std::optional<at::Tensor>& totals) {
  const auto outputs =
      detail::differentiable<SignEntropy>(x, sharpness, mask, totals, detail::wants_gradient(x));
  return {outputs[0], outputs[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("sign_entropy", sign_entropy);
  m.impl("sign_entropy_totals",
         torch::CppFunction::makeFromBoxedFunction<&detail::run_without_gradient>());
}

}  // namespace torchvq
