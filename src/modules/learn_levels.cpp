#include "modules/learn_levels.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <torchvq/functional/vector_quantize.h>

#include "modules/search.h"

namespace torchvq::detail {
namespace {

namespace F = functional;
using Counts = std::vector<at::Tensor>;
using Levels = std::vector<LearningLevel>;

/// The options that codebooks must have in common to learn by one call.
auto rules_of(const VectorQuantizeImpl& vq) {
  const auto& own = vq.codebook_state->options;
  return std::tuple(vq.codebook_state->metric(), vq.resolved().ema_update, own.decay(), own.eps(),
                    own.manual_ema_update(), own.threshold_ema_dead_code(),
                    own.dead_code_threshold_fraction(), own.sync_every());
}

bool accumulated_equally(const CodebookImpl& codebook, const CodebookImpl& other) {
  const auto kept = [](const CodebookImpl& own) { return own.kept_steps.slice(0, 0, 2); };
  return !codebook.keeps_statistics() || at::equal(kept(codebook), kept(other));
}

std::vector<const VectorQuantizeImpl*> quantizers_of(const Levels& levels) {
  std::vector<const VectorQuantizeImpl*> quantizers;
  for (const auto& level : levels) quantizers.push_back(level.vq);
  return quantizers;
}

Counts learn_alike_levels(const Levels& levels, const Ranks& ranks, int64_t decays) {
  const auto& first = *levels[0].vq->codebook_state;
  const bool ema_update = levels[0].vq->resolved().ema_update;
  if (!first.learns(ema_update)) return Counts(levels.size());
  std::vector<F::CodebookState> states;
  std::vector<F::StepTokens> tokens;
  std::vector<Codebook> codebooks;
  for (const auto& level : levels) {
    codebooks.push_back(level.vq->codebook_state);
    states.push_back(codebooks.back()->state());
    tokens.push_back(level.tokens);
  }
  auto options = first.learning(ema_update, ranks);
  options.decay(std::pow(options.decay(), decays));
  return F::learn_codebooks_(states, tokens, options.signature(joined_signature(codebooks)));
}

/// One exchange for all, or one for each codebook where options differ.
Counts learn_levels(const Levels& levels, const Ranks& ranks, int64_t decays) {
  if (levels.size() == 1 || learn_alike(quantizers_of(levels))) {
    return learn_alike_levels(levels, ranks, decays);
  }
  Counts counts;
  for (const auto& level : levels) counts.push_back(learn_alike_levels({level}, ranks, decays)[0]);
  return counts;
}

/// What advances a generator if any element is above 0, by the rules of finish_step_().
at::Tensor tokens_that_count(const FinishedLevel& level, const Ranks& ranks) {
  const auto options = level.rng.options();
  if (!level.draws) return at::zeros({1}, options);
  if (level.counts.defined()) return level.counts;
  // A rank does not know whether others have tokens, so its step counts as one with tokens.
  if (!ranks.alone()) return at::ones({1}, options);
  return level.tokens.mask.value_or(at::ones_like(level.tokens.indices));
}

}  // namespace

bool trains(const VectorQuantizeImpl& vq, bool frozen) {
  return vq.is_training() && vq.codebook_state->is_training() && !frozen;
}

bool draws(const VectorQuantizeImpl& vq, bool frozen) {
  return trains(vq, frozen) || (vq.is_training() && draws_frozen(vq.options));
}

bool learn_alike(const std::vector<const VectorQuantizeImpl*>& levels) {
  const auto& first = *levels[0];
  return std::all_of(levels.begin(), levels.end(), [&](const VectorQuantizeImpl* vq) {
    return rules_of(*vq) == rules_of(first) &&
           accumulated_equally(*vq->codebook_state, *first.codebook_state);
  });
}

Counts learn_together(const Levels& levels, const Ranks& ranks, int64_t decays) {
  auto learning = levels;
  if (levels[0].vq->codebook_state->keeps_statistics()) {
    // A level that does not train is left out: even without tokens, this would count as a kept step.
    std::erase_if(learning, [](const LearningLevel& level) { return !level.trains; });
  }
  const auto found = learning.empty() ? Counts() : learn_levels(learning, ranks, decays);
  const bool all = learning.size() == levels.size();
  Counts counts;
  auto own = found.begin();
  for (const auto& level : levels) {
    counts.push_back(level.trains ? *own : at::Tensor());
    if (all || level.trains) ++own;
  }
  return counts;
}

void finish_levels(at::TensorList step_counts, const std::vector<FinishedLevel>& levels,
                   const Ranks& ranks) {
  std::vector<at::Tensor> indices, masks, rng;
  Counts counts;
  for (const auto& level : levels) {
    indices.push_back(level.tokens.indices);
    if (level.tokens.mask) masks.push_back(*level.tokens.mask);
  }
  const bool shared = levels.size() > 1 && levels[1].rng.is_same(levels[0].rng);
  const auto advances = [](const FinishedLevel& level) { return level.draws; };
  if (std::any_of(levels.begin(), levels.end(), advances)) {
    for (const auto& level : levels) {
      if (shared && !rng.empty()) break;
      auto own = level;
      own.draws |= shared;
      rng.push_back(own.rng);
      counts.push_back(tokens_that_count(own, ranks));
    }
  }
  F::finish_step_(step_counts, indices, rng, counts, masks, ranks.alone());
}

}  // namespace torchvq::detail
