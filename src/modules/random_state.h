// The state of the modules' counter-based generator.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Seed and step (2,) of the counter-based generator, the seed drawn from torch's.
at::Tensor fresh_rng();

/// `rng` for draws per token: ranks of the default group draw different numbers.
at::Tensor rng_of_rank(const at::Tensor& rng);

}  // namespace torchvq::detail
