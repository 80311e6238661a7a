// The CPU's sums in eight lanes (kernels/cpu/lanes.h) by eight neighbouring threads: exchanges add the
// lanes in the same pairs, so that the sums are the same to the bit.
#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kLaneThreads = static_cast<int>(kLanes);

/// The total of LaneSum, in all eight threads. The whole warp calls it.
__device__ inline double lane_total(double lane) {
  for (int distance = kLaneThreads / 2; distance > 0; distance /= 2)
    lane += __shfl_xor_sync(kWholeWarp, lane, distance);
  return lane;
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
