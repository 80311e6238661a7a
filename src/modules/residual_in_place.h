// The in-place optimizer of a codebook that all levels share.
#pragma once

#include "modules/residual_levels.h"

namespace torchvq::detail {

/// Takes one step towards the residuals of all levels, for inputs (H, T, D); does nothing without
/// an optimizer, or in evaluation.
void step_shared_optimizer(ResidualVQImpl& rvq, const at::Tensor& inputs,
                           const StackRequest& request);

}  // namespace torchvq::detail
