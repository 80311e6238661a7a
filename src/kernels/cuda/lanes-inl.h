// The CPU's sums in eight lanes (kernels/cpu/lanes.h), by eight adjacent threads: shuffles add the
// lanes in the same pairs, so the sums have the same bits.
#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kLaneThreads = static_cast<int>(kLanes);

/// LaneSum's total, returned to all eight threads. All lanes of the warp must call it.
__device__ inline double lane_total(double lane) {
  for (int distance = kLaneThreads / 2; distance > 0; distance /= 2)
    lane += __shfl_xor_sync(kWholeWarp, lane, distance);
  return lane;
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
