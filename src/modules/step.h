// One forward of VectorQuantize between its projections.
#pragma once

#include <torchvq/functional/vector_quantize.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/call.h"

namespace torchvq::detail {

/// Searches, scores and learns.
///
/// @param projected  (H, T, D), the same tokens as `tokens` (B, N, dim).
/// @param codebook   (H, K, D) the codes, or (H, T, K, D) codes of each token.
/// @param mask       (H, T).
functional::VectorQuantizeStep step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                                    const at::Tensor& codebook, const at::Tensor& tokens,
                                    const std::optional<at::Tensor>& mask, const Call& call);

}  // namespace torchvq::detail
