// One forward of VectorQuantize between its projections.
#pragma once

#include <torchvq/modules/vector_quantize.h>

#include "modules/call.h"

namespace torchvq::detail {

/// What a forward has found.
struct Step {
  at::Tensor quantized;     ///< (H, T, D), or (H, T, k, D), with the estimator's gradient
  at::Tensor indices;       ///< (H, T), or (H, T, k)
  at::Tensor loss;          ///< a scalar; of candidates (H, T, k)
  LossBreakdown breakdown;  ///< 0 for terms that are absent
};

/// Searches, scores and learns.
///
/// @param projected  (H, T, D), the same tokens as `tokens` (B, N, dim).
/// @param mask       (H, T).
Step step(VectorQuantizeImpl& vq, const at::Tensor& projected, const at::Tensor& tokens,
          const std::optional<at::Tensor>& mask, const Call& call);

}  // namespace torchvq::detail
