// The tokens that codebooks learn from in a step: from the lists of an operator, from
// several levels, or empty.
#pragma once

#include <vector>

#include <torchvq/functional/learn_codebooks.h>

namespace torchvq::functional {

/// Converts the lists that operators take, with one entry for each level in use, of `codebooks`;
/// `mask` may be empty.
std::vector<StepTokens> step_tokens(const char* op, at::TensorList x, at::TensorList indices,
                                    at::TensorList mask, size_t codebooks);

/// Empty tokens of the same kind as `like`, so that a codebook keeps its place
/// in the exchange of ranks.
StepTokens no_tokens(const StepTokens& like);

/// Joins the residuals of all levels: for a shared codebook they are the tokens of one step.
StepTokens joined_tokens(const std::vector<StepTokens>& levels);

}  // namespace torchvq::functional
