#include "functional/residual_learning.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <torchvq/functional/vector_quantize.h>

#include "functional/step_tokens.h"

namespace torchvq::functional {
namespace {

using Counts = std::vector<at::Tensor>;

/// As in the reference, a shared codebook is updated once per level.
Counts learn_in_turn(const StackStep& stack, const LearnCodebooksOptions& options) {
  Counts counts;
  for (const auto& tokens : stack.tokens) {
    for (auto& own : learn_codebooks_(stack.states, {tokens}, options)) {
      counts.push_back(std::move(own));
    }
  }
  return counts;
}

/// The tokens of each codebook in use.
StackStep step_by_codebook(const StackStep& stack, const LearnCodebooksOptions& options,
                           int64_t beam) {
  auto step = stack;
  // In the reference, only the first level learns with a beam.
  if (options.vqp_compat() && beam > 1) step.tokens.resize(1);
  if (stack.shared && !options.vqp_compat()) step.tokens = {joined_tokens(step.tokens)};
  return step;
}

/// One exchange for all stacks.
std::vector<Counts> learn_at_once(const std::vector<StackStep>& stacks,
                                  const LearnCodebooksOptions& options) {
  StackStep all;
  for (const auto& [states, tokens, shared] : stacks) {
    all.states.insert(all.states.end(), states.begin(), states.end());
    all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end());
    all.tokens.insert(all.tokens.end(), states.size() - tokens.size(), no_tokens(tokens[0]));
  }
  const auto found = learn_codebooks_(all.states, all.tokens, options);
  std::vector<Counts> counts;
  auto from = found.begin();
  for (const auto& [states, tokens, shared] : stacks) {
    counts.emplace_back(from, from + static_cast<std::ptrdiff_t>(tokens.size()));
    from += static_cast<std::ptrdiff_t>(states.size());
  }
  return counts;
}

}  // namespace

std::vector<Counts> learn_stacks_(const std::vector<StackStep>& stacks,
                                  const LearnCodebooksOptions& options, int64_t beam) {
  std::vector<StackStep> steps;
  for (const auto& stack : stacks) steps.push_back(step_by_codebook(stack, options, beam));
  const bool in_turn = options.vqp_compat() && stacks[0].shared;
  if (!in_turn && !options.ranks().alone() && stacks.size() > 1) {
    return learn_at_once(steps, options);
  }
  std::vector<Counts> counts;
  for (const auto& step : steps) {
    counts.push_back(in_turn ? learn_in_turn(step, options)
                             : learn_codebooks_(step.states, step.tokens, options));
  }
  return counts;
}

void finish_levels_(at::TensorList step_counts, const std::vector<SearchedTokens>& levels,
                    const std::vector<CodebookState>& states, const Counts& counts, bool drew,
                    bool alone, const std::optional<at::Tensor>& depth) {
  Counts indices, masks, rng;
  for (const auto& level : levels) {
    indices.push_back(level.indices);
    if (level.mask) masks.push_back(*level.mask);
  }
  // A shared generator is advanced once; generators of levels that are not in use are left alone.
  const auto drawn = drew ? std::min(levels.size(), states.size()) : 0;
  for (size_t i = 0; i < drawn; ++i) rng.push_back(states[i].rng);
  finish_step_(step_counts, indices, rng, counts, masks, alone, depth);
}

}  // namespace torchvq::functional
