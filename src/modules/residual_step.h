// A forward of a residual stack in one function, for stacks without separate steps between levels.
#pragma once

#include <torchvq/functional/residual_quantize.h>

#include "modules/residual_levels.h"

namespace torchvq::detail {

/// Whether the stack has no separate steps between levels: no k-means, implicit
/// codebook or in-place optimizer.
bool steps_at_once(const ResidualVQImpl& rvq, const at::Tensor& tokens);

/// Searches, scores and learns; tokens (B, N, heads * D) are projected, and zero where masked.
functional::ResidualQuantizeStep step_at_once(ResidualVQImpl& rvq, const at::Tensor& tokens,
                                              const StackRequest& request, bool returns_codes);

/// Whether a frozen stack draws random numbers, besides those of its levels.
bool draws_of_stack(const ResidualVQImpl& rvq);

}  // namespace torchvq::detail
