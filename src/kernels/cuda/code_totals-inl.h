// Sums over the codes of a head by one block, and clamping to the range of a codebook's state, for
// the kernels that update it.
#pragma once

#include <limits>

#include "kernels/cpu/codebook_average.h"
#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Threads of a block that processes a whole head.
constexpr int kSizeThreads = 1024;

/// Clamps to the range of a state; NaN stays.
__device__ inline double within(double value, double most) {
  return value < -most ? -most : (most < value ? most : value);
}
template <typename T>
__device__ inline T narrowed(double value) {
  constexpr double kMost = std::numeric_limits<T>::max();
  return static_cast<T>(within(value, kMost));
}

/// Reduces the values of all threads by `merge`; every thread gets the result.
template <typename T, typename Merge>
__device__ inline T of_block(T value, const Merge& merge) {
  __shared__ T of_warps[kSizeThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = merge(value, __shfl_xor_sync(kWholeWarp, value, step));
  if (lane_of_warp() == 0) of_warps[warp_of_block()] = value;
  __syncthreads();
  value = of_warps[0];
#pragma unroll 4  // all at once would spill
  for (int warp = 1; warp < kSizeThreads / kWarp; ++warp) value = merge(value, of_warps[warp]);
  __syncthreads();  // before the array is reused
  return value;
}

/// order_free_total of codebook_average.h, computed by a block.
template <typename T>
__device__ inline double total_of_block(const T* values, int64_t count) {
  double largest = 0;
  bool finite = true;
  for (int64_t i = threadIdx.x; i < count; i += kSizeThreads) {
    const double value = fabs(static_cast<double>(values[i]));
    finite = finite && isfinite(value);
    if (finite) largest = max(largest, value);
  }
  finite = of_block(static_cast<int>(finite), [](int a, int b) { return a & b; }) != 0;
  largest = of_block(largest, [](double a, double b) { return a < b ? b : a; });
  const int32_t shift = total_bits(count) - exponent_of(largest);
  const double scale = power_of_two(shift);
  long long total = 0;
  for (int64_t i = threadIdx.x; finite && i < count; i += kSizeThreads)
    total += __double2ll_rn(static_cast<double>(values[i]) * scale);
  total = of_block(total, [](long long a, long long b) { return a + b; });
  if (!finite) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(total) * power_of_two(-shift);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
