// The codebook diversity loss of several ranks: what they add up so that each has the loss of all
// their tokens.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <torchvq/modules/vector_quantize.h>

#include "modules/call.h"

namespace torchvq::detail {

/// Sums over the ranks for the diversity loss of each level in use: one all-reduce for all, none
/// where nothing is shared.
///
/// @param levels  all levels of a stack; those beyond `chosen` were dropped, and take part with
///                nothing, so that what ranks exchange does not depend on the depth.
/// @param chosen  what each level in use has searched.
std::vector<std::optional<at::Tensor>> shared_totals(
    const std::vector<const VectorQuantizeImpl*>& levels,
    const std::vector<std::reference_wrapper<const Chosen>>& chosen,
    const distributed::Ranks& ranks);

}  // namespace torchvq::detail
