// Losses and learning of the levels of residual stacks, with one exchange of statistics.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "functional/step_tokens.h"
#include "modules/learn_levels.h"
#include "modules/losses.h"
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
  const auto totals = F::shared_totals(codebooks, searched, options, ranks);
  std::vector<F::QuantizerLosses> found;
  for (size_t index = 0; index < levels.size(); ++index) {
    const auto& level = levels[index];
    found.push_back(F::search_losses(searched[index], targets_of(*level.vq, level.request),
                                     totals[index], options[index]));
  }
  return found;
}

bool level_trains(const Level& level) { return trains(*level.vq, level.request.frozen); }

F::StepTokens tokens_of(const Level& level) {
  const auto& searched = level.result.searched;
  return {level.vq->codebook_state->raw_inputs(searched.inputs), searched.indices, searched.mask};
}

/// In the reference, only the first level learns with a beam.
std::vector<Level> learning_levels(const Pending& stack) {
  auto levels = stack.walk.levels;
  if (stack.rvq->options.vq().vqp_compat() && stack.request.beam > 1) levels.resize(1);
  return levels;
}

/// A shared codebook sees the residuals of all levels as the tokens of one step.
LearningLevel shared_level(const std::vector<Level>& levels) {
  std::vector<F::StepTokens> trained;
  for (const auto& level : levels) {
    if (level_trains(level)) trained.push_back(tokens_of(level));
  }
  if (trained.empty()) return {levels[0].vq, F::no_tokens(tokens_of(levels[0])), false};
  return {levels[0].vq, F::joined_tokens(trained), true};
}

/// The codebooks of a stack; those that do not learn keep their place in the message.
std::vector<LearningLevel> step_of(const Pending& stack) {
  const auto levels = learning_levels(stack);
  if (stack.rvq->options.shared_codebook()) return {shared_level(levels)};
  std::vector<LearningLevel> step;
  for (size_t index = 0; index < stack.rvq->levels.size(); ++index) {
    const auto& vq = *stack.rvq->levels[index];
    const auto& level = levels[std::min(index, levels.size() - 1)];
    const bool used = index < levels.size();
    const bool learns = used ? level_trains(level)
                             : trains(vq, stack.request.frozen || vq.options.freeze_codebook());
    const auto tokens = tokens_of(level);
    step.push_back({&vq, used && learns ? tokens : F::no_tokens(tokens), learns});
  }
  return step;
}

/// As in the reference, a shared codebook is updated once per level.
std::vector<at::Tensor> learn_in_turn(const Pending& stack) {
  std::vector<at::Tensor> counts;
  for (const auto& level : learning_levels(stack)) {
    if (!level_trains(level)) continue;
    counts.push_back(learn_together({{level.vq, tokens_of(level), true}}, stack.request.ranks)[0]);
  }
  return counts;
}

bool stack_rests(const Pending* stack) {
  return !stack->rvq->is_training() || stack->request.frozen;
}

/// Updates the averages and codes of all levels, and replaces dead codes, with one exchange for all
/// stacks. Returns the tokens per code of each codebook, over all ranks; see learn_together().
Counts update(const std::vector<const Pending*>& stacks) {
  const auto& options = stacks[0]->rvq->options;
  Counts counts(stacks.size());
  std::vector<size_t> together;
  std::vector<LearningLevel> all;
  for (size_t s = 0; s < stacks.size(); ++s) {
    const auto& stack = *stacks[s];
    if (!stack.rvq->is_training()) continue;
    if (options.shared_codebook() && options.vq().vqp_compat()) {
      counts[s] = learn_in_turn(stack);
      continue;
    }
    auto step = step_of(stack);
    if (stack.request.ranks.alone()) {
      counts[s] = learn_together(step, stack.request.ranks);
    } else {
      together.push_back(s);
      std::move(step.begin(), step.end(), std::back_inserter(all));
    }
  }
  if (all.empty()) return counts;
  const auto found = learn_together(all, stacks[together[0]]->request.ranks);
  auto own = found.begin();
  for (const auto s : together) {
    const auto end = own + static_cast<std::ptrdiff_t>(codebooks_of(*stacks[s]->rvq).size());
    counts[s].assign(own, end);
    own = end;
  }
  return counts;
}

/// Counts the use of codes, for stats(), and advances the step.
void finish_step(ResidualVQImpl& rvq, const std::vector<Level>& levels,
                 const std::vector<at::Tensor>& counts, const Ranks& ranks) {
  std::vector<at::Tensor> uses;
  for (const auto& level : rvq.levels) {
    // A new tensor, so that a copy of the module keeps its own.
    level.ptr()->step_counts = level->codebook_state->fresh_counts();
    uses.push_back(level->step_counts);
  }
  std::vector<FinishedLevel> finished;
  for (const auto& level : levels) {
    const auto place = finished.size();
    const auto& searched = level.result.searched;
    finished.push_back({level.vq->codebook_state->rng,
                        {searched.inputs, searched.indices, searched.mask},
                        place < counts.size() ? counts[place] : at::Tensor(),
                        draws(*level.vq, level.request.frozen) || draws_of_stack(rvq)});
  }
  finish_levels(uses, finished, ranks);
}

}  // namespace

std::vector<at::Tensor> learn(const std::vector<const Pending*>& stacks) {
  std::vector<std::vector<F::QuantizerLossOptions>> options(stacks.size());
  std::vector<std::vector<F::QuantizerLosses>> found;
  for (size_t s = 0; s < stacks.size(); ++s) {
    const auto& stack = *stacks[s];
    for (const auto& level : stack.walk.levels) {
      options[s].push_back(loss_options(*level.vq, level.result.tokens, level.request));
    }
    found.push_back(search_losses(*stack.rvq, stack.walk.levels, options[s], stack.request.ranks));
  }
  const bool rest = std::all_of(stacks.begin(), stacks.end(), stack_rests);
  const auto counts = rest ? Counts(stacks.size()) : update(stacks);
  std::vector<at::Tensor> losses;
  for (size_t s = 0; s < stacks.size(); ++s) {
    const auto& stack = *stacks[s];
    const auto& levels = stack.walk.levels;
    std::vector<at::Tensor> own;
    for (size_t index = 0; index < levels.size(); ++index) {
      const auto& level = levels[index];
      own.push_back(level_loss(*level.vq, level.result.searched, level.request,
                               std::move(found[s][index]), options[s][index]));
    }
    if (stack.rvq->is_training()) {
      finish_step(*stack.rvq, levels, counts[s], stack.request.ranks);
    }
    losses.push_back(stack_levels(std::move(own), stack.rvq->num_quantizers(), 0));
  }
  return losses;
}

}  // namespace torchvq::detail
