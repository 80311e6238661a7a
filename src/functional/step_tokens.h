// The tokens that codebooks learn from in a step: from the lists of an operator, of several levels, of none.
#pragma once

#include <vector>

#include <torchvq/functional/learn_codebooks.h>

namespace torchvq::functional {

/// From the lists that operators take, an entry for each level; `mask` may be empty.
std::vector<StepTokens> step_tokens(const char* op, at::TensorList x, at::TensorList indices,
                                    at::TensorList mask);

/// No tokens of the same kind, of a codebook that keeps its place in what ranks exchange.
StepTokens no_tokens(const StepTokens& like);

/// A shared codebook sees the residuals of all levels as the tokens of one step.
StepTokens joined_tokens(const std::vector<StepTokens>& levels);

}  // namespace torchvq::functional
