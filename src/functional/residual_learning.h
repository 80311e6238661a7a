// What the codebooks of a residual stack learn from its levels, and how their step ends.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/functional/quantizer_losses.h>

namespace torchvq::functional {

/// One step of a stack.
struct StackStep {
  std::vector<CodebookState> states;  ///< of all levels, a shared one once
  std::vector<StepTokens> tokens;     ///< of the levels in use
  bool shared = false;                ///< whether all levels have one codebook
};

/// Moves the averages and codes of all levels of stacks of equal options, and replaces dead codes: one
/// exchange over ranks for all. Codebooks of levels that are not in use take part with nothing: what
/// ranks exchange must not depend on the depth.
///
/// @param beam  paths that the search kept between levels.
/// @return      tokens per code of all ranks, for each stack and level, of a shared codebook once;
///              none where nothing is learnt.
std::vector<std::vector<at::Tensor>> learn_stacks_(const std::vector<StackStep>& stacks,
                                                   const LearnCodebooksOptions& options,
                                                   int64_t beam);

/// Ends the step of a stack, see finish_step_().
///
/// @param states  of all levels, as in StackStep.
/// @param drew    whether levels took numbers from their generators.
void finish_levels_(at::TensorList step_counts, const std::vector<SearchedTokens>& levels,
                    const std::vector<CodebookState>& states, const std::vector<at::Tensor>& counts,
                    bool drew, bool alone);

}  // namespace torchvq::functional
