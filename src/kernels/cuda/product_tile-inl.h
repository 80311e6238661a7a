// A tile of a product of two matrices in float32. Each sum over k runs in index order from
// zero, with products and additions rounded separately: the bits of a plain loop, at half the
// rate of fused multiply-add.
#pragma once

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

inline constexpr int kProductSide = 64;
inline constexpr int kProductDepth = 16;
inline constexpr int kProductThreads = 256;
inline constexpr int kProductOwn = 4;  // rows and columns per thread: 16 x 16 threads

struct ProductTile {
  float left[kProductDepth][kProductSide], right[kProductDepth][kProductSide];
};

/// One thread's part of a tile: rows and columns thread, thread + 16, ....
struct ProductSums {
  float sum[kProductOwn][kProductOwn];

  __device__ static int row() { return static_cast<int>(threadIdx.x) / 16; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 16; }

  __device__ void add(const ProductSums& other) {
#pragma unroll
    for (int r = 0; r < kProductOwn; ++r) {
#pragma unroll
      for (int c = 0; c < kProductOwn; ++c) sum[r][c] += other.sum[r][c];
    }
  }

  /// Writes the part inside of to (rows, columns).
  __device__ void store(float* to, int64_t first_row, int64_t first_column, int64_t rows,
                        int64_t columns) const {
#pragma unroll
    for (int r = 0; r < kProductOwn; ++r) {
      const int64_t at_row = first_row + row() + r * 16;
#pragma unroll
      for (int c = 0; c < kProductOwn; ++c) {
        const int64_t at_column = first_column + column() + c * 16;
        if (at_row < rows && at_column < columns) to[at_row * columns + at_column] = sum[r][c];
      }
    }
  }
};

/// The sums over k = 0 ... depth - 1 of left(k, row) * right(k, column). All threads of the block
/// must call it; left and right return 0 outside of their matrices.
template <typename Left, typename Right>
__device__ ProductSums product_block(ProductTile& tile, int64_t depth, const Left& left,
                                     const Right& right) {
  ProductSums sums{};
  for (int64_t first = 0; first < depth; first += kProductDepth) {
    for (int at = threadIdx.x; at < kProductDepth * kProductSide; at += kProductThreads) {
      const int k = at / kProductSide, i = at % kProductSide;
      const bool inside = first + k < depth;
      tile.left[k][i] = inside ? left(first + k, i) : 0.0F;
      tile.right[k][i] = inside ? right(first + k, i) : 0.0F;
    }
    __syncthreads();
    const int wanted =
        depth - first < kProductDepth ? static_cast<int>(depth - first) : kProductDepth;
    for (int k = 0; k < wanted; ++k) {
      float own_left[kProductOwn], own_right[kProductOwn];
#pragma unroll
      for (int i = 0; i < kProductOwn; ++i) {
        own_left[i] = tile.left[k][ProductSums::row() + i * 16];
        own_right[i] = tile.right[k][ProductSums::column() + i * 16];
      }
#pragma unroll
      for (int r = 0; r < kProductOwn; ++r) {
#pragma unroll
        for (int c = 0; c < kProductOwn; ++c) sums.sum[r][c] += own_left[r] * own_right[c];
      }
    }
    __syncthreads();
  }
  return sums;
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
