// A forward of a residual stack in one function, if no level needs a step between the levels.
#pragma once

#include <torchvq/functional/residual_quantize.h>

#include "modules/residual_levels.h"

namespace torchvq::detail {

/// Whether no level needs a step between the levels: no k-means, no implicit codebook, no in-place
/// optimizer.
bool steps_at_once(const ResidualVQImpl& rvq);

/// Searches, scores and learns; tokens (B, N, heads * D) are projected, and zero where masked.
functional::ResidualQuantizeStep step_at_once(ResidualVQImpl& rvq, const at::Tensor& tokens,
                                              const StackRequest& request);

/// Whether a frozen stack draws random numbers.
bool draws(const ResidualVQImpl& rvq);

}  // namespace torchvq::detail
