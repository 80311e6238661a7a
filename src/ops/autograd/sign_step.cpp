#include "ops/sign_step.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "ops/autograd/precomputed_gradients.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

/// Autograd treats the slopes of the entropies as constants; everything else is differentiable.
at::Tensor gradient_of(const detail::SignStepGradients& grads, const detail::SignStepSaved& saved,
                       const ops::SignStepWeights& weights) {
  const bool entropies = grads.per_sample.defined() || grads.batch.defined() ||
                         (grads.loss.defined() && weights.entropy != 0);
  if (entropies) detail::check_once_differentiable("sign_step");
  return at::GradMode::is_enabled() ? detail::sign_step_backward_any(grads, saved, weights)
                                    : detail::call_sign_step_backward(grads, saved, weights);
}

struct SignStep : torch::autograd::Function<SignStep> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& latents,
                               const ops::SignStepOptions& options, const OptionalTensor& mask,
                               const OptionalTensor& entropy_mask, const OptionalTensor& totals,
                               bool wanted) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [codes, indices, loss, per_sample, batch, commitment, slope_per_sample,
                slope_batch] =
        detail::call_sign_step(latents, options, mask, entropy_mask, totals, wanted);
    ctx->save_for_backward(
        {latents, codes, slope_per_sample, slope_batch, mask.value_or(at::Tensor())});
    const auto& weights = options.weights;
    ctx->saved_data["weights"] =
        std::vector<double>{weights.entropy, weights.diversity_gamma, weights.commitment};
    ctx->mark_non_differentiable({indices, slope_per_sample, slope_batch});
    ctx->set_materialize_grads(false);
    // Users may write to the results, so they get copies of saved tensors.
    return {wanted ? codes.clone() : codes,
            indices,
            loss,
            per_sample,
            batch,
            commitment,
            slope_per_sample,
            slope_batch};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& mask = saved[4];
    const auto data = ctx->saved_data["weights"].toDoubleVector();
    const ops::SignStepWeights weights{data[0], data[1], data[2]};
    const detail::SignStepGradients upstream{grads[0], grads[2], grads[3], grads[4], grads[5]};
    const auto none = at::Tensor();
    return {gradient_of(upstream,
                        {saved[0], saved[1], saved[2], saved[3],
                         mask.defined() ? OptionalTensor(mask) : std::nullopt},
                        weights),
            none,
            none,
            none,
            none,
            none};
  }
};

detail::SignStepTensors sign_step(const at::Tensor& latents, const ops::SignStepOptions& options,
                                  const OptionalTensor& mask, const OptionalTensor& entropy_mask,
                                  const OptionalTensor& totals, bool wanted) {
  // A tracer calls the operator again with the recorded value of `wanted`.
  const auto found = detail::differentiable<SignStep>(latents, options, mask, entropy_mask, totals,
                                                      wanted || detail::wants_gradient(latents));
  return {found[0], found[1], found[2], found[3], found[4], found[5], found[6], found[7]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("sign_step", TORCH_FN(detail::sign_step_kernel<&sign_step>));
}

}  // namespace torchvq
