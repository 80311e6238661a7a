#include "functional/residual_learning.h"

#include <algorithm>
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

}  // namespace

std::vector<at::Tensor> learn_stack_(const StackStep& stack, const LearnCodebooksOptions& options,
                                     int64_t beam) {
  const auto step = step_by_codebook(stack, options, beam);
  if (options.vqp_compat() && stack.shared) return learn_in_turn(step, options);
  return learn_codebooks_(step.states, step.tokens, options);
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
