#include "modules/residual_step.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "modules/learn_levels.h"
#include "modules/losses.h"
#include "modules/ranks.h"
#include "modules/residual_beam.h"
#include "modules/search.h"

namespace torchvq::detail {

namespace F = functional;

namespace {

/// The options of levels of which the operator has one value for all.
auto options_of_all(const VectorQuantizeOptions& level) {
  return std::tie(level.freeze_codebook(), level.commitment_weight(),
                  level.commitment_use_cross_entropy_loss(), level.orthogonal_reg_weight(),
                  level.orthogonal_reg_active_codes_only(), level.orthogonal_reg_max_codes(),
                  level.codebook_diversity_loss_weight(), level.codebook_diversity_temperature(),
                  level.stochastic_sample_codes(), level.sample_codebook_temp(),
                  level.straight_through(), level.directional_reparam(),
                  level.directional_reparam_variance(), level.route_gradients_to_input(),
                  level.sync_update_v());
}

}  // namespace

bool steps_at_once(const ResidualVQImpl& rvq, const at::Tensor& tokens) {
  const auto& options = rvq.options.vq();
  if (rvq.options.implicit_neural_codebook() || options.affine_param() ||
      options.in_place_codebook_optimizer()) {
    return false;
  }
  if (rvq.is_training() && rvq.options.quant_grad_frac() > 0 && codes_learn(rvq) &&
      !takes_gradient(tokens)) {
    return false;  // later levels take a gradient from the codes, and so have an estimator
  }
  const auto& first = rvq.levels[0]->options;
  const bool rotates = rvq.levels[0]->resolved().rotation_trick;
  const bool training = rvq.is_training();
  std::vector<const VectorQuantizeImpl*> levels;
  for (const auto& level : rvq.levels) levels.push_back(level.ptr().get());
  if (training && !learn_alike(levels)) return false;
  return std::all_of(rvq.levels.begin(), rvq.levels.end(), [&](const VectorQuantize& level) {
    const auto& codebook = *level->codebook_state;
    return level->is_training() == training && codebook.is_training() == training &&
           codebook.initialised() && level->resolved().rotation_trick == rotates &&
           options_of_all(level->options) == options_of_all(first);
  });
}

bool draws_of_stack(const ResidualVQImpl& rvq) {
  const bool drops = rvq.options.quantize_dropout() && rvq.num_quantizers() > 1;
  return drops || rvq.options.diveq();
}

namespace {

F::ResidualQuantizeArguments arguments_of(ResidualVQImpl& rvq, at::ScalarType dtype,
                                          const StackRequest& request) {
  F::ResidualQuantizeArguments arguments;
  arguments.mask = request.mask;
  arguments.states = states_of(rvq, /*learns=*/!request.frozen);
  const auto layout = layout_of(rvq);
  for (int64_t index = 0; index < rvq.num_quantizers(); ++index) {
    auto& level = *rvq.levels[index];
    if (rvq.is_training()) {
      // A new tensor, so that a copy of the module keeps its own.
      level.step_counts = level.codebook_state->fresh_counts();
    }
    arguments.step_counts.push_back(level.step_counts);
    if (index >= request.depth) continue;
    arguments.codebooks.push_back(stored_codes(level, dtype));
    if (!request.targets.empty()) {
      arguments.targets.push_back(layout.split_indices(request.targets[index]));
    }
  }
  return arguments;
}

F::ResidualQuantizeOptions options_of(ResidualVQImpl& rvq, const at::Tensor& tokens,
                                      const StackRequest& request) {
  const auto& first = *rvq.levels[0];
  const auto own_request = request_of_level(first, std::nullopt, request.mask, request.temperature,
                                            request.frozen, request.ranks);
  const bool training = rvq.is_training();
  const auto gradient = gradient_of(rvq, tokens);
  const auto layout = layout_of(rvq);
  auto learning = first.codebook_state->learning(own_request.ema_update, request.ranks);
  return F::ResidualQuantizeOptions()
      .layout(F::TokenLayout()
                  .heads(first.options.heads())
                  .separate(first.options.separate_codebook_per_head())
                  .zeros_for_masked(rvq.options.return_zeros_for_masked_padding()))
      .search(search_options(first, own_request, estimator_of(first, tokens, codes_learn(rvq))))
      .estimator(gradient.estimate.estimator())
      .losses(loss_options(first, std::nullopt, own_request))
      .learning(learning.signature(joined_signature(codebooks_of(rvq))))
      .estimates_levels(gradient.estimates_levels)
      .handed_on(gradient.handed_on)
      .beam(request.beam)
      .beam_weights(beam_weights_of(rvq, request.depth))
      .learns(training && !request.frozen)
      .finishes(training)
      .draws(draws_of_stack(rvq) || draws_frozen(first.options));
}

}  // namespace

F::ResidualQuantizeStep step_at_once(ResidualVQImpl& rvq, const at::Tensor& tokens,
                                     const StackRequest& request, bool returns_codes) {
  auto arguments = arguments_of(rvq, tokens.scalar_type(), request);
  return F::residual_quantize_(tokens, arguments,
                               options_of(rvq, tokens, request).returns_codes(returns_codes));
}

}  // namespace torchvq::detail
