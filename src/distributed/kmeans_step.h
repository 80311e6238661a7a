// One Lloyd iteration over tokens that are distributed over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>

#include "distributed/group.h"
#include "ops/kmeans_steps.h"

namespace torchvq::distributed {

/// New codes (K, D) from the points of all ranks, the same on all: moved by `stride` towards exact
/// means; codes without points move to distinct points, drawn as in detail::draw_far_points.
/// One all-reduce, and one all-gather if there are such codes.
at::Tensor synced_lloyd_step(const Group& group, const detail::Points& own, const at::Tensor& codes,
                             const at::Tensor& rng, int64_t iteration, bool unit, double stride,
                             const SyncOptions& sync);

}  // namespace torchvq::distributed
