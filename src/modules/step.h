// One forward of VectorQuantize between its projections.
#pragma once

#include <optional>

#include <torchvq/functional/layout.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/request.h"

namespace torchvq::detail {

/// The result of a forward, in the layout of its input.
struct Step {
  at::Tensor quantized;  ///< with the estimator's gradient
  at::Tensor indices;
  at::Tensor loss;          ///< a scalar; with candidates, one for each
  LossBreakdown breakdown;  ///< absent terms are 0
};

/// Initialises the codes if necessary, searches, computes losses and learns.
///
/// @param x       in the input layout; projected if there is a projection.
/// @param before  (B, N, dim), the tokens before the projection, masked ones
///                zero; empty without one.
Step step(VectorQuantizeImpl& vq, const at::Tensor& x, const std::optional<at::Tensor>& before,
          const Request& request, const functional::TokenLayout& layout);

}  // namespace torchvq::detail
