#include "modules/step.h"

#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/losses.h>

#include "modules/layout.h"
#include "modules/ranks.h"
#include "modules/search.h"

namespace torchvq::detail {
namespace {

namespace F = functional;

F::QuantizeOptions search_options(const VectorQuantizeImpl& vq, const Call& call) {
  const auto& options = vq.options;
  const bool sampling = vq.is_training() && options.stochastic_sample_codes();
  return F::QuantizeOptions()
      .topk(call.topk)
      .metric(vq.codebook_state->metric())
      .estimator(estimator_of(vq))
      .temperature(sampling ? std::optional(call.temperature) : std::nullopt)
      .gradient_temperature(call.temperature)
      .variance(options.directional_reparam_variance())
      .sync_update_v(vq.is_training() ? options.sync_update_v() : 0);
}

F::QuantizerLossOptions loss_options(const VectorQuantizeImpl& vq, const at::Tensor& tokens,
                                     const Call& call) {
  const auto& options = vq.options;
  auto losses = F::QuantizerLossOptions()
                    .training(vq.is_training())
                    .metric(vq.codebook_state->metric())
                    .commitment_weight(vq.has_commitment_loss() ? options.commitment_weight() : 0)
                    .commitment_use_cross_entropy_loss(options.commitment_use_cross_entropy_loss())
                    .pulls_codes(vq.resolved().learnable_codebook && !call.frozen)
                    .diversity_weight(options.codebook_diversity_loss_weight())
                    .diversity_temperature(options.codebook_diversity_temperature())
                    .orthogonal_weight(options.orthogonal_reg_weight())
                    .orthogonal_active_codes_only(options.orthogonal_reg_active_codes_only())
                    .orthogonal_max_codes(options.orthogonal_reg_max_codes());
  if (options.vqp_compat()) {
    losses.vqp_compat(F::TokensBefore{tokens, call.mask, options.heads(),
                                      options.separate_codebook_per_head(),
                                      !vq.project_in.is_empty()});
  }
  return losses;
}

/// The second half of a step whose statistics are kept for later, or were: they lie in between.
void learn_apart(VectorQuantizeImpl& vq, F::VectorQuantizeStep& found,
                 const std::optional<at::Tensor>& mask, const Call& call,
                 const F::QuantizerLossOptions& losses) {
  auto& codebook = *vq.codebook_state;
  const auto& [quantized, indices, codes, inputs] = found.found;
  const auto counts = codebook.learn(inputs, indices, mask, call.ema_update, call.accumulate,
                                     call.weight, call.ranks);
  if (losses.orthogonal_weight() > 0) {
    found.orthogonal = F::orthogonal_term(codebook.embed, indices, codebook.rng, losses);
    if (!call.targets) {
      found.loss = found.loss.add(found.orthogonal.mul(losses.orthogonal_weight()));
    }
  }
  const std::vector<at::Tensor> uses{vq.step_counts}, chosen{indices}, rng{codebook.rng};
  F::finish_step_(uses, chosen, rng, counts ? std::vector{*counts} : std::vector<at::Tensor>(),
                  mask ? std::vector{*mask} : std::vector<at::Tensor>(), call.ranks.alone());
}

}  // namespace

F::VectorQuantizeStep step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                           const at::Tensor& codebook, const at::Tensor& tokens,
                           const std::optional<at::Tensor>& mask, const Call& call) {
  auto& own = *vq.codebook_state;
  const bool training = vq.is_training();
  const bool learns = training && !call.frozen && !call.topk;
  const bool apart = learns && (call.accumulate || own.has_pending());
  if (training) {
    own.begin_step();
    // A new tensor, so that a copy of the module keeps what it has.
    vq.step_counts = at::zeros_like(own.cooldown);
  }
  const auto losses = loss_options(vq, tokens, call);
  F::VectorQuantizeArguments arguments{codebook,    mask, std::nullopt,
                                       call.weight, {},   vq.step_counts};
  if (call.targets) {
    arguments.targets = layout_of(vq.options, "VectorQuantize").split_indices(*call.targets);
  }
  if (vq.options.affine_param()) arguments.affine = own.affine_state();
  auto first = losses;
  if (apart) first.orthogonal_weight(0);
  auto found = F::vector_quantize_(projected, own.state(), arguments,
                                   F::VectorQuantizeStepOptions()
                                       .search(search_options(vq, call))
                                       .losses(first)
                                       .learning(own.learning(call.ema_update, call.ranks))
                                       .learns(learns && !apart)
                                       .finishes(training && !apart));
  if (apart) learn_apart(vq, found, mask, call, losses);
  return found;
}

}  // namespace torchvq::detail
