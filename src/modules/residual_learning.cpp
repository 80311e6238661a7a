// What the levels of residual stacks learn: losses, one exchange of statistics, updates.
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

/// Tokens per code of the levels of several stacks.
using Counts = std::vector<std::vector<at::Tensor>>;

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

/// The codebooks of a stack, and the tokens of those in use.
struct Lesson {
  std::vector<Codebook> codebooks;
  std::vector<F::TaughtTokens> tokens;
};

/// A shared codebook sees the residuals of all levels as the tokens of one step.
Lesson shared_lesson(const std::vector<Level>& levels) {
  std::vector<at::Tensor> inputs, indices, masks;
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    inputs.push_back(chosen.inputs);
    indices.push_back(chosen.indices);
    if (chosen.mask) {
      masks.push_back(*chosen.mask);
    }
  }
  const auto& codebook = levels[0].vq->codebook_state;
  return {{codebook},
          {{codebook->raw_inputs(at::cat(inputs, 1)), at::cat(indices, 1),
            masks.empty() ? std::nullopt : std::optional(at::cat(masks, 1))}}};
}

/// Codebooks of levels that are not in use take part with nothing: what ranks exchange must not
/// depend on the depth.
Lesson lesson_of(const ResidualVQImpl& rvq, const std::vector<Level>& levels) {
  if (rvq.options.shared_codebook()) return shared_lesson(levels);
  Lesson lesson;
  for (const auto& level : rvq.levels) lesson.codebooks.push_back(level->codebook_state);
  for (const auto& level : levels) {
    const auto& chosen = level.choice.chosen;
    lesson.tokens.push_back(
        {level.vq->codebook_state->raw_inputs(chosen.inputs), chosen.indices, chosen.mask});
  }
  return lesson;
}

std::vector<at::Tensor> learn_together(const Lesson& lesson, bool ema_update, const Ranks& ranks) {
  std::vector<F::CodebookState> states;
  std::string signature;
  for (const auto& codebook : lesson.codebooks) {
    states.push_back(codebook.ptr()->state());
    signature += (signature.empty() ? "" : "; ") + codebook->signature();
  }
  auto options = lesson.codebooks[0]->learning(ema_update, ranks);
  return F::learn_codebooks_(states, lesson.tokens, options.signature(signature));
}

/// No tokens of the same kind, of a codebook that keeps its place in the message.
F::TaughtTokens none_of(const F::TaughtTokens& tokens) {
  const auto none = [](const at::Tensor& tensor) { return tensor.slice(1, 0, 0); };
  return {none(tokens.x), none(tokens.indices),
          tokens.mask ? std::optional(none(*tokens.mask)) : std::nullopt};
}

/// One exchange for all stacks; the counts of each.
Counts learn_lessons(const std::vector<Lesson>& lessons, bool ema_update, const Ranks& ranks) {
  Counts counts;
  if (ranks.alone() || lessons.size() == 1) {
    for (const auto& lesson : lessons) counts.push_back(learn_together(lesson, ema_update, ranks));
    return counts;
  }
  Lesson all;
  for (const auto& [codebooks, tokens] : lessons) {
    all.codebooks.insert(all.codebooks.end(), codebooks.begin(), codebooks.end());
    all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end());
    all.tokens.insert(all.tokens.end(), codebooks.size() - tokens.size(), none_of(tokens[0]));
  }
  const auto found = learn_together(all, ema_update, ranks);
  auto from = found.begin();
  for (const auto& [codebooks, tokens] : lessons) {
    counts.emplace_back(from, from + static_cast<std::ptrdiff_t>(tokens.size()));
    from += static_cast<std::ptrdiff_t>(codebooks.size());
  }
  return counts;
}

/// Moves the averages and codes of all levels, and replaces dead codes, by what the search has
/// found. Returns the tokens per code of each level, of all ranks; nothing if no level learns.
Counts update(const std::vector<Searched>& stacks) {
  const auto& first = stacks[0].walk->levels[0];
  if (!first.vq->codebook_state->learns(first.call.ema_update)) {
    return Counts(stacks.size());
  }
  const auto& options = stacks[0].rvq->options;
  const bool compat = first.vq->options.vqp_compat();
  Counts counts;
  std::vector<Lesson> lessons;
  for (const auto& [rvq, walk, request] : stacks) {
    // The reference's other levels do not learn under a beam.
    const auto levels = compat && request->beam > 1 ? std::vector{walk->levels[0]} : walk->levels;
    if (compat && options.shared_codebook()) {
      counts.push_back(learn_in_turn(levels));
    } else {
      lessons.push_back(lesson_of(*rvq, levels));
    }
  }
  if (!lessons.empty()) {
    counts = learn_lessons(lessons, first.call.ema_update, stacks[0].request->ranks);
  }
  return counts;
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

std::vector<at::Tensor> learn(const std::vector<Searched>& stacks) {
  std::vector<std::vector<F::QuantizerLossOptions>> options(stacks.size());
  std::vector<std::vector<F::QuantizerLosses>> found;
  for (size_t s = 0; s < stacks.size(); ++s) {
    const auto& [rvq, walk, request] = stacks[s];
    for (const auto& level : walk->levels) {
      options[s].push_back(loss_options(*level.vq, level.choice.chosen.tokens, level.call));
    }
    found.push_back(search_losses(*rvq, walk->levels, options[s], request->ranks));
  }
  const bool training = stacks[0].rvq->is_training(), frozen = stacks[0].request->frozen;
  const auto counts = training && !frozen ? update(stacks) : Counts(stacks.size());
  std::vector<at::Tensor> losses;
  for (size_t s = 0; s < stacks.size(); ++s) {
    const auto& [rvq, walk, request] = stacks[s];
    std::vector<at::Tensor> own;
    for (size_t index = 0; index < walk->levels.size(); ++index) {
      const auto& [vq, call, choice, implicit] = walk->levels[index];
      own.push_back(
          level_loss(*vq, choice.chosen, call, std::move(found[s][index]), options[s][index]));
    }
    if (training) {
      finish_step(*rvq, walk->levels, counts[s], request->ranks, !frozen || draws(*rvq));
    }
    losses.push_back(stack_levels(std::move(own), rvq->num_quantizers(), 0));
  }
  return losses;
}

}  // namespace torchvq::detail
