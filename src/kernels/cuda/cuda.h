// The first include of a kernel file: CUDA, or the emulation that tests compile with g++
// (tests/cuda_shim). Besides CUDA's own names, kernels use only the functions of this file, which
// both provide. Torch-free.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "cuda_shim.h"
#endif

#include "kernels/cuda/namespace.h"

#if defined(__CUDACC__)
#include "kernels/cuda/device-inl.h"
#endif

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;  // all warp collectives include every lane

/// Storage of a half-precision number.
struct alignas(2) Half {
  uint16_t bits;
};
struct alignas(2) BFloat16 {
  uint16_t bits;
};

__device__ inline float to_float(float value) { return value; }
__device__ inline double to_float(double value) { return value; }
__device__ inline float to_float(Half value) { return half_to_float(value.bits); }
__device__ inline float to_float(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

/// Number of this thread in the grid, and number of threads, for grid-stride loops:
/// `for (int64_t i = grid_thread(); i < count; i += grid_threads())`.
__device__ inline int64_t grid_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t grid_threads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ inline int64_t grid_warp() { return grid_thread() / kWarp; }
__device__ inline int64_t grid_warps() { return grid_threads() / kWarp; }

/// Returns the sum to every lane; it is added as a tree, in the same order on every device.
template <typename T>
__device__ inline T sum_of_warp(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}

template <typename T>
__device__ inline T largest_of_warp(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(kWholeWarp, value, step);
    value = value < other ? other : value;
  }
  return value;
}

/// Numbers in a line of a tile of multiply_add_group(): 128 bytes.
constexpr int kGroupDepth = 64;

/// Where number d of a line is in such a tile, whose 16-byte pieces are permuted within each line.
__device__ inline int place_in_group_tile(int line, int d) {
  return line * kGroupDepth + ((d / 8 ^ line % 8) * 8 + d % 8);
}

/// Blocks for `count` items, `each` per block, at least one and at most `most`:
/// kernels use grid-stride loops.
inline unsigned blocks_for(int64_t count, int64_t each, int64_t most = 65535) {
  const int64_t blocks = (count + each - 1) / each;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks > most ? most : blocks));
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
