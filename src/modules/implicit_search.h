// The search of a level with an implicit codebook, and its entropy losses.
#pragma once

#include <optional>
#include <string>

#include <torchvq/modules/implicit_codebook.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/request.h"

namespace torchvq::detail {

/// The network of a level and its condition.
struct Implicit {
  ImplicitCodebookImpl* mlp;
  at::Tensor condition;  ///< (H, T, D), what the levels before have decoded
};

/// Like choose(). The search runs without a graph, on a block of tokens at a time. The chosen codes
/// are then recomputed with the computation that decodes them, so that decoding reproduces the
/// output bit for bit, and backward costs one code per token.
///
/// @param estimator  default: the module's own.
SearchResult choose_implicit(VectorQuantizeImpl& vq, const Implicit& implicit,
                             const at::Tensor& residual, const at::Tensor& tokens,
                             const std::optional<at::Tensor>& mask, const Request& request,
                             const std::optional<std::string>& estimator, const at::Tensor& rng);

/// Commitment loss as the cross-entropy of the distances to all codes of each
/// token, with targets (H, T).
at::Tensor implicit_cross_entropy(const Implicit& implicit,
                                  const functional::SearchedTokens& searched,
                                  const at::Tensor& targets);

/// Minus the entropy of the codes' mean probability over the tokens of all ranks; codes with
/// the same index count as the same code. On several ranks, each level needs one
/// differentiable all-reduce.
at::Tensor implicit_diversity(const Implicit& implicit, const functional::SearchedTokens& searched,
                              double temperature, const distributed::Ranks& ranks);

}  // namespace torchvq::detail
