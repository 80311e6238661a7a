// A forward of a residual stack by one function, where no level needs a step of its own.
#pragma once

#include <torchvq/functional/residual_quantize.h>

#include "modules/residual_levels.h"

namespace torchvq::detail {

/// Whether nothing of a level's own lies between the levels: no k-means, no network that makes
/// codes, no optimizer.
bool steps_at_once(const ResidualVQImpl& rvq);

/// Searches, scores and learns; tokens (B, N, heads * D) are projected, and zero where masked.
functional::ResidualQuantizeStep step_at_once(ResidualVQImpl& rvq, const at::Tensor& tokens,
                                              const StackRequest& request);

/// Whether a frozen stack takes numbers from its generators.
bool draws(const ResidualVQImpl& rvq);

}  // namespace torchvq::detail
