#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/residual_commitment_loss.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/precision.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CommitmentLoss : torch::autograd::Function<CommitmentLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& codes,
                            const std::optional<at::Tensor>& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // codes were looked up by a leaf operator, so that compilers save and never recompute them.
    ctx->save_for_backward({x, codes, mask.value_or(at::Tensor())});
    return ops::commitment_loss(x, codes, mask);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &codes = saved[1], &mask = saved[2];
    if (!at::GradMode::is_enabled() && !ctx->needs_input_grad(1)) {
      const auto given_mask = mask.defined() ? std::optional(mask) : std::nullopt;
      const auto grad_x = ops::residual_commitment_loss_backward(
          grads[0].reshape({1}), at::TensorList(x), at::TensorList(codes), given_mask);
      return {grad_x.to(x.scalar_type()), at::Tensor(), at::Tensor()};
    }
    const auto dtype = detail::value_dtype(x, codes);
    auto grad_x = x.to(dtype) - codes.to(dtype);
    if (mask.defined()) grad_x.masked_fill_(mask.logical_not().unsqueeze(-1), 0);
    grad_x.mul_(detail::commitment_gradient_scale(grads[0], x, mask));
    const auto grad_codes =
        ctx->needs_input_grad(1) ? grad_x.neg().to(codes.scalar_type()) : at::Tensor();
    return {grad_x.to(x.scalar_type()), grad_codes, at::Tensor()};
  }
};

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  return detail::differentiable<CommitmentLoss>(x, codes, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("commitment_loss", commitment_loss); }

}  // namespace torchvq
