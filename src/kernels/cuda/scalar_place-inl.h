// The value that a thread handles when a block processes whole rows of a few features.
#pragma once

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// A tile has kPlaceThreads / features rows; the remaining threads have no value.
inline constexpr int kPlaceThreads = 256;

struct RowPlace {
  int rows;     ///< per tile
  int row;      ///< of this thread in its tile
  int feature;  ///< of this thread

  __device__ explicit RowPlace(int features)
      : rows(kPlaceThreads / features),
        row(static_cast<int>(threadIdx.x) / features),
        feature(static_cast<int>(threadIdx.x) - row * features) {}

  /// Whether the thread has a value in the tile that begins with row `first`.
  __device__ bool holds(int64_t first, int64_t all) const {
    return row < rows && first + row < all;
  }

  /// Whether the thread computes the index of row first + threadIdx.x.
  __device__ bool leads(int64_t first, int64_t all) const {
    return static_cast<int>(threadIdx.x) < rows && first + threadIdx.x < all;
  }

  /// The first rows of the tiles of this block: `for (first = begin(); ...; first += step())`.
  __device__ int64_t begin() const { return static_cast<int64_t>(blockIdx.x) * rows; }
  __device__ int64_t step() const { return static_cast<int64_t>(gridDim.x) * rows; }
};

inline unsigned tiles_for(int64_t rows, int64_t features) {
  return blocks_for(rows, kPlaceThreads / features);
}

/// By arithmetic that every type supports.
template <typename T>
__device__ inline bool is_finite(T value) {
  return value - value == T(0);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
