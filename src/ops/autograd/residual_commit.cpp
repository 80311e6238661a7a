#include <torchvq/ops/residual_commit.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/rotation_trick.h>
#include <torchvq/ops/straight_through.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "ops/loss_gradients.h"
#include "ops/residual_commit.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kRotates = "rotates", kGain = "gain", kLevels = "levels";

/// The gradient of the losses to x, by differentiable operators: a residual is x minus constants.
at::Tensor differentiable_gradient(const at::Tensor& grads, const at::Tensor& x,
                                   const at::Tensor& residuals, const at::Tensor& mask,
                                   double gain) {
  const auto scales = detail::commitment_gradient_scale(grads, x, mask);
  at::Tensor total;
  for (auto level = residuals.size(0) - 1; level >= 0; --level) {
    auto own = ops::straight_through(x.to(residuals.scalar_type()), residuals[level]);
    if (mask.defined()) own = own.masked_fill(mask.logical_not().unsqueeze(-1), 0);
    own = own * scales[level];
    total = total.defined() ? own + total : own;
  }
  return total * (1 / gain);
}

struct ResidualCommit : torch::autograd::Function<ResidualCommit> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList codebooks,
                               const at::Tensor& indices, const std::optional<at::Tensor>& mask,
                               std::string_view estimator, double gain) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [quantized, losses, residuals] =
        ops::residual_commit(x, codebooks, indices, mask, estimator, gain);
    ctx->set_materialize_grads(false);
    const bool rotates = estimator == "rotation_trick";
    ctx->saved_data[kRotates] = rotates;
    ctx->saved_data[kGain] = gain;
    ctx->saved_data[kLevels] = static_cast<int64_t>(codebooks.size());
    // Outputs of this leaf operator, so compilers save them and never recompute them. A copy of the sum, because users
    // may write to the result.
    ctx->save_for_backward(
        {x, mask.value_or(at::Tensor()), residuals, rotates ? quantized.clone() : at::Tensor()});
    variable_list constant{residuals};
    if (estimator == "none") constant.push_back(quantized);
    ctx->mark_non_differentiable(constant);
    return {quantized, losses, residuals};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    // One for each input: x, the codebooks, indices, mask, estimator, gain.
    variable_list result(static_cast<size_t>(ctx->saved_data.at(kLevels).toInt()) + 5);
    auto& total = result[0];
    total = grads[0];
    const bool rotates = ctx->saved_data.at(kRotates).toBool() && total.defined();
    // Otherwise saved tensors are not needed, so users may have written to them.
    if (!rotates && !grads[1].defined()) return result;
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &mask = saved[1], &residuals = saved[2], &quantized = saved[3];
    if (rotates) {
      detail::check_once_differentiable("rotation_trick");
      total = ops::rotation_trick_backward(total, x.to(quantized.scalar_type()), quantized);
    }
    const double gain = ctx->saved_data.at(kGain).toDouble();
    if (grads[1].defined() && at::GradMode::is_enabled()) {
      const auto own = differentiable_gradient(grads[1], x, residuals, mask, gain);
      total = total.defined() ? total + own : own;
    } else if (grads[1].defined()) {
      const auto given = [](const at::Tensor& tensor) {
        return tensor.defined() ? std::optional(tensor) : std::nullopt;
      };
      total = ops::residual_commit_backward(grads[1], residuals, given(mask), gain, given(total));
    }
    total = total.to(x.scalar_type());
    return result;
  }
};

detail::ResidualCommitTensors residual_commit(const at::Tensor& x, at::TensorList codebooks,
                                              const at::Tensor& indices,
                                              const std::optional<at::Tensor>& mask,
                                              std::string_view estimator, double gain) {
  auto found = detail::differentiable<ResidualCommit>(x, codebooks, indices, mask, estimator, gain);
  return {found[0], found[1], found[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("residual_commit", residual_commit); }

}  // namespace torchvq
