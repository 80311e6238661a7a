// Argument checks of replace_with_candidates_, called by every kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/replace_dead_codes_.h"

namespace torchvq::detail {

void check_replace_with_candidates_(const CodebookState& state, const at::Tensor& keys,
                                    const at::Tensor& rows, const at::Tensor& counts,
                                    const at::Tensor& rng, const DeadCodeArguments& arguments);

}  // namespace torchvq::detail
