// Tokens that teach a codebook, of several levels or of none.
#pragma once

#include <vector>

#include <torchvq/functional/learn_codebooks.h>

namespace torchvq::functional {

/// No tokens of the same kind, of a codebook that keeps its place in what ranks exchange.
TaughtTokens no_tokens(const TaughtTokens& like);

/// A shared codebook sees the residuals of all levels as the tokens of one step.
TaughtTokens joined_tokens(const std::vector<TaughtTokens>& levels);

}  // namespace torchvq::functional
