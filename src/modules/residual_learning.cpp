// What the levels of a residual stack learn: losses, one exchange of statistics, updates.
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/vector_quantize.h>

#include "modules/losses.h"
#include "modules/residual_engine.h"
#include "modules/residual_levels.h"
#include "modules/residual_step.h"

namespace torchvq::detail {
namespace {

namespace F = functional;
using distributed::Ranks;

/// The losses of a level whose codes are made for each token.
F::QuantizerLosses implicit_losses(const Level& level, const F::QuantizerLossOptions& options) {
  const auto& [vq, call, choice, implicit] = level;
  const auto& chosen = choice.chosen;
  const bool by_entropy = options.training() && options.commitment_weight() > 0 &&
                          options.commitment_use_cross_entropy_loss();
  auto targets = targets_of(*vq, call);
  if (!targets && by_entropy) targets = chosen.indices;
  auto own = options;
  own.diversity_weight(0);
  if (targets) own.commitment_weight(0);
  auto losses = F::search_losses(chosen, std::nullopt, std::nullopt, own);
  if (targets) losses.commitment = implicit_cross_entropy(*implicit, chosen, *targets);
  if (options.training() && options.diversity_weight() > 0) {
    losses.diversity =
        implicit_diversity(*implicit, chosen, options.diversity_temperature(), call.ranks);
  }
  return losses;
}

/// The losses of all levels as far as they are known before the codes change.
std::vector<F::QuantizerLosses> search_losses(const ResidualVQImpl& rvq,
                                              const std::vector<Level>& levels,
                                              const std::vector<F::QuantizerLossOptions>& options,
                                              const Ranks& ranks) {
  // Levels whose codes are made for each token share their own way; the first has a plain codebook.
  const size_t plain = rvq.options.implicit_neural_codebook() ? 1 : rvq.levels.size();
  std::vector<at::Tensor> codebooks;
  std::vector<F::SearchedTokens> searched;
  for (size_t index = 0; index < plain; ++index) {
    codebooks.push_back(rvq.levels[index]->codebook_state->embed);
    if (index < levels.size()) searched.push_back(levels[index].choice.chosen);
  }
  auto totals = F::shared_totals(codebooks, searched, options[0], ranks);
  totals.resize(levels.size());
  std::vector<F::QuantizerLosses> found;
  for (size_t index = 0; index < levels.size(); ++index) {
    const auto& level = levels[index];
    found.push_back(level.implicit
                        ? implicit_losses(level, options[index])
                        : F::search_losses(level.choice.chosen, targets_of(*level.vq, level.call),
                                           totals[index], options[index]));
  }
  return found;
}

/// As in the reference, a shared codebook moves once for each level.
std::vector<at::Tensor> learn_in_turn(const std::vector<Level>& levels) {
  std::vector<at::Tensor> counts;
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    const auto found = level.vq->codebook_state->learn(chosen.inputs, chosen.indices, chosen.mask,
                                                       level.call.ema_update, /*accumulate=*/false,
                                                       std::nullopt, level.call.ranks);
    if (found) {
      counts.push_back(*found);
    }
  }
  return counts;
}

/// A shared codebook sees the residuals of all levels as the tokens of one step.
std::vector<at::Tensor> learn_once(const std::vector<Level>& levels) {
  std::vector<at::Tensor> inputs, indices, masks;
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    inputs.push_back(chosen.inputs);
    indices.push_back(chosen.indices);
    if (chosen.mask) {
      masks.push_back(*chosen.mask);
    }
  }
  const auto& first = levels[0];
  const auto counts = first.vq->codebook_state->learn(
      at::cat(inputs, 1), at::cat(indices, 1),
      masks.empty() ? std::nullopt : std::optional(at::cat(masks, 1)), first.call.ema_update,
      /*accumulate=*/false, std::nullopt, first.call.ranks);
  return counts ? std::vector<at::Tensor>{*counts} : std::vector<at::Tensor>();
}

/// Each level its own codebook, one exchange for all.
std::vector<at::Tensor> learn_together(ResidualVQImpl& rvq, const std::vector<Level>& levels,
                                       const Request& request) {
  std::vector<F::CodebookState> states;
  std::string signature;
  // Codebooks of levels that are not in use take part with nothing: what ranks exchange must not
  // depend on the depth.
  for (const auto& level : rvq.levels) {
    auto& codebook = *level->codebook_state.ptr();
    states.push_back(codebook.state());
    signature += (signature.empty() ? "" : "; ") + codebook.signature();
  }
  std::vector<F::TaughtTokens> tokens;
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    tokens.push_back(
        {level.vq->codebook_state->raw_inputs(chosen.inputs), chosen.indices, chosen.mask});
  }
  const auto& first = levels[0];
  auto options = first.vq->codebook_state->learning(first.call.ema_update, request.ranks);
  return F::learn_codebooks_(states, tokens, options.signature(signature));
}

/// Moves the averages and codes of all levels, and replaces dead codes, by what the search has
/// found. Returns the tokens per code of each level, of all ranks; nothing if no level learns.
std::vector<at::Tensor> update(ResidualVQImpl& rvq, const std::vector<Level>& levels,
                               const Request& request) {
  const auto& first = levels[0];
  if (!first.vq->codebook_state->learns(first.call.ema_update)) {
    return {};
  }
  if (first.vq->options.vqp_compat() && request.beam > 1 && levels.size() > 1) {
    // The reference's other levels do not learn under a beam.
    return update(rvq, {first}, request);
  }
  if (!rvq.options.shared_codebook()) {
    return learn_together(rvq, levels, request);
  }
  return first.vq->options.vqp_compat() ? learn_in_turn(levels) : learn_once(levels);
}

/// Counts the uses of codes, for stats(), and the step.
void finish_step(ResidualVQImpl& rvq, const std::vector<Level>& levels,
                 const std::vector<at::Tensor>& counts, const Ranks& ranks, bool drew) {
  std::vector<at::Tensor> uses, indices, rng, masks;
  for (const auto& level : rvq.levels) {
    // A new tensor, so that a copy of the module keeps what it has.
    level.ptr()->step_counts = at::zeros_like(level->codebook_state->cooldown);
    uses.push_back(level->step_counts);
  }
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    indices.push_back(chosen.indices);
    if (chosen.mask) masks.push_back(*chosen.mask);
    if (!drew) continue;
    if (rng.empty() || !rvq.options.shared_codebook()) {
      rng.push_back(level.vq->codebook_state->rng);
    }
  }
  F::finish_step_(uses, indices, rng, counts, masks, ranks.alone());
}

}  // namespace

at::Tensor learn(ResidualVQImpl& rvq, const Walk& walk, const Request& request) {
  const auto& levels = walk.levels;
  std::vector<F::QuantizerLossOptions> options;
  for (const auto& level : levels) {
    options.push_back(loss_options(*level.vq, level.choice.chosen.tokens, level.call));
  }
  auto found = search_losses(rvq, levels, options, request.ranks);
  std::vector<at::Tensor> counts;
  if (rvq.is_training() && !request.frozen) {
    counts = update(rvq, levels, request);
  }
  std::vector<at::Tensor> losses;
  for (size_t index = 0; index < levels.size(); ++index) {
    const auto& [vq, call, choice, implicit] = levels[index];
    losses.push_back(level_loss(*vq, choice.chosen, call, std::move(found[index]), options[index]));
  }
  if (rvq.is_training()) {
    finish_step(rvq, levels, counts, request.ranks, !request.frozen || draws(rvq));
  }
  return stack_levels(std::move(losses), rvq.num_quantizers(), 0);
}

}  // namespace torchvq::detail
