// Candidates of several levels and ranks: fixed-size sets of (key, row).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/group.h"

namespace torchvq::distributed {

/// Keys (H, C), int64, kNoKey where there is none; rows (H, C, D), zero there.
struct Candidates {
  at::Tensor keys;
  at::Tensor rows;
};

/// Concatenates the sets of all ranks on axis 1, for each entry, with one all-gather. Shapes must
/// be the same on all ranks.
std::vector<Candidates> gather_candidates(const Group& group, const std::vector<Candidates>& own);

}  // namespace torchvq::distributed
