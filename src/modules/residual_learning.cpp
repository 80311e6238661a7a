// Losses and learning of the levels of residual stacks, with one exchange of statistics.
#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ops/zeros_like.h>

#include "functional/residual_learning.h"
#include "modules/losses.h"
#include "modules/ranks.h"
#include "modules/residual_engine.h"
#include "modules/residual_levels.h"
#include "modules/residual_step.h"

namespace torchvq::detail {
namespace {

namespace F = functional;
using distributed::Ranks;

/// Tokens per code of the levels of several stacks.
using Counts = std::vector<std::vector<at::Tensor>>;

/// The search of a level as its losses need it: if they compare tokens with all codes, and these
/// differ for each token, the codes of each token.
F::SearchedTokens compared(const Level& level, const F::QuantizerLossOptions& options) {
  auto searched = level.result.searched;
  const bool by_entropy =
      options.commitment_weight() > 0 && options.commitment_use_cross_entropy_loss();
  const bool all = level.request.targets ||
                   (options.training() && (by_entropy || options.diversity_weight() > 0));
  if (level.implicit && all) searched.codebook = own_codes(*level.implicit, searched.codebook);
  return searched;
}

/// The losses of all levels that are computed before the codes change.
std::vector<F::QuantizerLosses> search_losses(const ResidualVQImpl& rvq,
                                              const std::vector<Level>& levels,
                                              const std::vector<F::QuantizerLossOptions>& options,
                                              const Ranks& ranks) {
  std::vector<at::Tensor> codebooks;
  std::vector<F::SearchedTokens> searched;
  for (size_t index = 0; index < rvq.levels.size(); ++index) {
    codebooks.push_back(rvq.levels[index]->codebook_state->embed);
    if (index < levels.size()) searched.push_back(compared(levels[index], options[index]));
  }
  const auto totals = F::shared_totals(codebooks, searched, options[0], ranks);
  std::vector<F::QuantizerLosses> found;
  for (size_t index = 0; index < levels.size(); ++index) {
    const auto& level = levels[index];
    found.push_back(F::search_losses(searched[index], targets_of(*level.vq, level.request),
                                     totals[index], options[index]));
  }
  return found;
}

/// The tokens that a level learns from: none where it is frozen, or it or its codebook is in
/// evaluation mode.
F::StepTokens learnt_tokens(const Level& level) {
  const auto& codebook = *level.vq->codebook_state;
  const auto& searched = level.result.searched;
  F::StepTokens tokens{codebook.raw_inputs(searched.inputs), searched.indices, searched.mask};
  if (level.vq->is_training() && codebook.is_training() && !level.request.frozen) return tokens;
  const auto none = [](const at::Tensor& rows) { return rows.slice(1, 0, 0); };
  return {none(tokens.x), none(tokens.indices),
          tokens.mask ? std::optional(none(*tokens.mask)) : std::nullopt};
}

/// Updates the averages and codes of all levels, and replaces dead codes. Returns the tokens per
/// code of each level, over all ranks; empty if no level learns.
Counts update(const std::vector<Searched>& stacks) {
  const auto& first = stacks[0].walk->levels[0];
  const auto& codebook = *first.vq->codebook_state;
  if (!codebook.learns(first.request.ema_update)) return Counts(stacks.size());
  std::vector<F::StackStep> steps;
  std::vector<Codebook> codebooks;
  for (const auto& [rvq, walk, request] : stacks) {
    F::StackStep step{states_of(*rvq), {}, rvq->options.shared_codebook()};
    for (const auto& level : walk->levels) {
      step.tokens.push_back(learnt_tokens(level));
    }
    steps.push_back(std::move(step));
    for (auto& own : codebooks_of(*rvq)) codebooks.push_back(std::move(own));
  }
  auto options = codebook.learning(first.request.ema_update, stacks[0].request->ranks);
  return F::learn_stacks_(steps, options.signature(joined_signature(codebooks)),
                          stacks[0].request->beam);
}

/// Counts the use of codes, for stats(), and advances the step.
void finish_step(ResidualVQImpl& rvq, const std::vector<Level>& levels,
                 const std::vector<at::Tensor>& counts, const Ranks& ranks, bool drew) {
  std::vector<at::Tensor> uses;
  for (const auto& level : rvq.levels) {
    // A new tensor, so that a copy of the module keeps its own.
    level.ptr()->step_counts = at::zeros_like(level->codebook_state->cooldown);
    uses.push_back(level->step_counts);
  }
  std::vector<F::SearchedTokens> searched;
  for (const auto& level : levels) searched.push_back(level.result.searched);
  F::finish_levels_(uses, searched, states_of(rvq), counts, drew, ranks.alone());
}

}  // namespace

std::vector<at::Tensor> learn(const std::vector<Searched>& stacks) {
  std::vector<std::vector<F::QuantizerLossOptions>> options(stacks.size());
  std::vector<std::vector<F::QuantizerLosses>> found;
  for (size_t s = 0; s < stacks.size(); ++s) {
    const auto& [rvq, walk, request] = stacks[s];
    for (const auto& level : walk->levels) {
      options[s].push_back(loss_options(*level.vq, level.result.tokens, level.request));
    }
    found.push_back(search_losses(*rvq, walk->levels, options[s], request->ranks));
  }
  const bool training = stacks[0].rvq->is_training();
  const bool frozen = std::all_of(stacks.begin(), stacks.end(),
                                  [](const Searched& stack) { return stack.request->frozen; });
  const auto counts = training && !frozen ? update(stacks) : Counts(stacks.size());
  std::vector<at::Tensor> losses;
  for (size_t s = 0; s < stacks.size(); ++s) {
    const auto& [rvq, walk, request] = stacks[s];
    std::vector<at::Tensor> own;
    for (size_t index = 0; index < walk->levels.size(); ++index) {
      const auto& level = walk->levels[index];
      own.push_back(level_loss(*level.vq, level.result.searched, level.request,
                               std::move(found[s][index]), options[s][index]));
    }
    if (training) {
      finish_step(*rvq, walk->levels, counts[s], request->ranks, !request->frozen || draws(*rvq));
    }
    losses.push_back(stack_levels(std::move(own), rvq->num_quantizers(), 0));
  }
  return losses;
}

}  // namespace torchvq::detail
