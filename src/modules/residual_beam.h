// Which codes a residual stack takes when several paths through its levels are kept (beam search).
#pragma once

#include <vector>

#include "modules/residual_levels.h"

namespace torchvq::detail {

/// The indices (H, T) of all levels in use, for inputs (H, T, D); of padding, any valid ones.
std::vector<at::Tensor> search_paths(ResidualVQImpl& rvq, const at::Tensor& inputs,
                                     const StackRequest& request);

/// What precedes the search of each level (k-means, statistics of the affine map). All of it
/// precedes the search of all levels, so each level sees what the nearest codes have left.
void prepare_levels(ResidualVQImpl& rvq, const at::Tensor& inputs, const StackRequest& request);

/// What the score of a path weighs each level's remainder by; none: the last remainder is the
/// score.
std::vector<double> beam_weights_of(const ResidualVQImpl& rvq, int64_t depth);

/// How many paths a forward keeps. Throws c10::ValueError for a size that the options exclude.
int64_t beam_of(const ResidualVQImpl& rvq, std::optional<int64_t> size);

}  // namespace torchvq::detail
