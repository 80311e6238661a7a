// Beam search of a residual stack.
#pragma once

#include <vector>

#include "modules/residual_levels.h"

namespace torchvq::detail {

/// The indices (H, T) of all levels in use, for inputs (H, T, D); arbitrary
/// valid indices for padding.
std::vector<at::Tensor> search_paths(ResidualVQImpl& rvq, const at::Tensor& inputs,
                                     const StackRequest& request);

/// Prepares all levels before the search (k-means, statistics of the affine map): each level sees
/// the residual of the nearest codes.
void prepare_levels(ResidualVQImpl& rvq, const at::Tensor& inputs, const StackRequest& request);

/// The weights of the levels' residuals in the score of a path; if empty, the
/// last residual is the score.
std::vector<double> beam_weights_of(const ResidualVQImpl& rvq, int64_t depth);

/// The beam of a forward with this size. Throws c10::ValueError for a size that the options exclude.
int64_t beam_of(const ResidualVQImpl& rvq, std::optional<int64_t> size);

}  // namespace torchvq::detail
