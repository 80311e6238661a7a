#include <torchvq/ops/residual_commitment_loss.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/straight_through.h>

#include "detail/differentiable.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The gradient of x, by differentiable operators: the input of each level is x minus constants.
at::Tensor differentiable_gradient(const at::Tensor& grads, const at::Tensor& x,
                                   at::TensorList inputs, at::TensorList codes,
                                   const at::Tensor& mask) {
  const auto scales = detail::commitment_gradient_scale(grads, x, mask);
  at::Tensor total;
  for (auto level = static_cast<int64_t>(inputs.size()) - 1; level >= 0; --level) {
    auto own = ops::straight_through(x, inputs[level]).to(scales.scalar_type()) - codes[level];
    if (mask.defined()) own = own.masked_fill(mask.logical_not().unsqueeze(-1), 0);
    own = own * scales[level];
    total = total.defined() ? own + total : own;
  }
  return total;
}

struct ResidualCommitmentLoss : torch::autograd::Function<ResidualCommitmentLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList inputs,
                            at::TensorList codes, const std::optional<at::Tensor>& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // Inputs and codes are outputs of a leaf operator, so compilers save them
    // and never recompute them.
    variable_list saved{x, mask.value_or(at::Tensor())};
    saved.insert(saved.end(), inputs.begin(), inputs.end());
    saved.insert(saved.end(), codes.begin(), codes.end());
    ctx->save_for_backward(saved);
    return ops::residual_commitment_loss(x, inputs, codes, mask);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &mask = saved[1];
    const auto levels = (saved.size() - 2) / 2;
    const at::TensorList all(saved);
    const auto inputs = all.slice(2, levels), codes = all.slice(2 + levels, levels);
    const auto optional_mask = mask.defined() ? std::optional(mask) : std::nullopt;
    const auto grad =
        at::GradMode::is_enabled()
            ? differentiable_gradient(grads[0], x, inputs, codes, mask)
            : ops::residual_commitment_loss_backward(grads[0], inputs, codes, optional_mask);
    variable_list result(1 + 2 * levels + 1);
    result[0] = grad.to(x.scalar_type());
    return result;
  }
};

at::Tensor residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                    at::TensorList codes, const std::optional<at::Tensor>& mask) {
  return detail::differentiable<ResidualCommitmentLoss>(x, inputs, codes, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("residual_commitment_loss", residual_commitment_loss);
}

}  // namespace torchvq
