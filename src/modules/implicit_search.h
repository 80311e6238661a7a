// The search of a level with an implicit codebook.
#pragma once

#include <optional>
#include <string>

#include <torchvq/modules/implicit_codebook.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/request.h"

namespace torchvq::detail {

/// Number of elements in the codes of a block of tokens that are computed together.
constexpr int64_t kImplicitBlock = int64_t{1} << 23;

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
/// @param given      (H, T), indices that are already chosen; then nothing is searched.
SearchResult choose_implicit(VectorQuantizeImpl& vq, const Implicit& implicit,
                             const at::Tensor& residual, const at::Tensor& tokens,
                             const std::optional<at::Tensor>& mask, const Request& request,
                             const std::optional<std::string>& estimator, const at::Tensor& rng,
                             const std::optional<at::Tensor>& given);

/// The codes of each token (H, T, K, D) from the base codes (H, K, D) of a level, with their graph.
at::Tensor own_codes(const Implicit& implicit, const at::Tensor& base);

}  // namespace torchvq::detail
