// The learning step of the codebooks of a residual stack, and the end of the step.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/functional/quantizer_losses.h>

namespace torchvq::functional {

/// One step of a stack.
struct StackStep {
  std::vector<CodebookState> states;  ///< of all levels; a shared codebook once
  std::vector<StepTokens> tokens;     ///< of the levels in use
  bool shared = false;                ///< whether all levels share one codebook
};

/// Updates averages and codes of all levels of a stack, and replaces dead codes, with one exchange
/// over ranks. Codebooks of levels that are not in use take part without tokens, because the
/// messages must not depend on the depth.
///
/// @param beam  number of paths that the search kept between levels.
/// @return      tokens per code over all ranks, for each level; for a shared codebook once; empty
///              if nothing is learnt.
std::vector<at::Tensor> learn_stack_(const StackStep& stack, const LearnCodebooksOptions& options,
                                     int64_t beam);

/// Ends the step of a stack; see finish_step_().
///
/// @param states  of all levels, as in StackStep.
/// @param drew    whether levels drew numbers from their generators.
void finish_levels_(at::TensorList step_counts, const std::vector<SearchedTokens>& levels,
                    const std::vector<CodebookState>& states, const std::vector<at::Tensor>& counts,
                    bool drew, bool alone, const std::optional<at::Tensor>& depth = std::nullopt);

}  // namespace torchvq::functional
