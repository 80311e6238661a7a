// Replacement of dead codes on the CPU: what detail/dead_codes.h does by tensor operators on all
// codes, here on those that are replaced, with the same result to the bit.
#pragma once

#include "detail/dead_codes.h"

namespace torchvq::detail {

/// replace_codes() of CPU tensors; `keys` (H, C) and `rows` (H, C, D) may also be those of all
/// tokens, kNoKey where a token is no candidate.
at::Tensor replace_codes_on_cpu(const DeadCodeState& state, const DeadCodes& codes,
                                const at::Tensor& most, const at::Tensor& keys,
                                const at::Tensor& rows, const at::Tensor& rng,
                                const DeadCodeArguments& arguments);

}  // namespace torchvq::detail
