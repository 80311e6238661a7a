// A tile of a product on tensor cores, half precision accumulated in float32: shared by the scans
// of nearest_code and of residual stacks.
#pragma once

#include "kernels/cuda/nearest_code_lists-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int64_t kFewDimensions = 16;  // up to here float32 is as fast
constexpr int kTileCodes = 128;
constexpr int kTileDepth = 32;  // dimensions per stage
// 80 bytes per row in shared memory: eight rows of ldmatrix touch every bank once.
constexpr int kTileStride = kTileDepth + 8;
constexpr int kStages = 3;
constexpr int kHalfThreads = 256;

/// Starts this thread's share of the copies of kTileDepth dimensions of `lines` lines, `stride` apart, from global to shared
/// memory. Addresses are 32-bit products: those of 64 bits would cost more than the product of the tile.
template <int lines>
__device__ inline void copy_tile(const uint16_t* matrix, int first, int stride, uint16_t* stage) {
  constexpr int kPieces = kTileDepth / 8;  // of 16 bytes
  constexpr int kApart = kHalfThreads / kPieces;
  static_assert(lines % kApart == 0);
  const int line = static_cast<int>(threadIdx.x) / kPieces,
            part = static_cast<int>(threadIdx.x) % kPieces * 8;
#pragma unroll
  for (int i = 0; i < lines / kApart; ++i) {
    const int own = line + i * kApart;
    copy_async_16(stage + own * kTileStride + part,
                  matrix + static_cast<int64_t>(first + own) * stride + part);
  }
}

/// A warp's part of a tile: fragments of 16 rows by 8 codes.
template <int row_fragments, int code_fragments>
struct HalfSums {
  float of[row_fragments][code_fragments][4];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < row_fragments; ++i)
#pragma unroll
      for (int j = 0; j < code_fragments; ++j)
#pragma unroll
        for (int v = 0; v < 4; ++v) of[i][j][v] = 0;
  }

  /// Adds the products of kTileDepth dimensions of the warp's rows, `row_stride` apart, and its
  /// codes, kTileStride apart; both in shared memory.
  __device__ void add(const uint16_t* first_row, int row_stride, const uint16_t* first_code) {
    const int lane = lane_of_warp();
    // ldmatrix: lanes 0 to 7 address the rows of the first 8 x 8 matrix, 8 to 15 of the second, ...
    // For rows: rows 0-7 and 8-15 of the first 8 dimensions, then of the next 8. For codes: the
    // first and the next 8 dimensions of codes 0-7, then of codes 8-15.
    const uint16_t* rows = first_row + lane % 16 * row_stride + lane / 16 * 8;
    const uint16_t* codes =
        first_code + (lane / 16 * 8 + lane % 8) * kTileStride + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kTileDepth; k += kDepthOfMma) {
      uint32_t a[row_fragments][4];
#pragma unroll
      for (int i = 0; i < row_fragments; ++i) load_matrices(a[i], rows + i * 16 * row_stride + k);
#pragma unroll
      for (int j = 0; j < code_fragments; j += 2) {
        uint32_t b[4];
        load_matrices(b, codes + j * 8 * kTileStride + k);
#pragma unroll
        for (int i = 0; i < row_fragments; ++i) {
          multiply_add(of[i][j], a[i], b[0], b[1]);
          multiply_add(of[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  /// Calls take(i, r, score, index) for all scores, with codes in order of index: row
  /// lane / 4 + 8 r of fragment i; a thread has two adjacent codes of each fragment.
  /// code: the first code of the warp; half_norms: of its codes.
  template <typename Take>
  __device__ void for_scores(const float* half_norms, int32_t code,
                             const float (&units)[row_fragments][2], const Take& take) const {
    const int32_t own = code + lane_of_warp() % 4 * 2;
    for_places(half_norms, units, [&](int i, int r, int j, int c, float score) {
      take(i, r, score, own + j * 8 + c);
    });
  }

  /// The same with the places of codes: take(i, r, j, c, score), adjacent code c of fragment j.
  template <typename Take>
  __device__ void for_places(const float* half_norms, const float (&units)[row_fragments][2],
                             const Take& take) const {
#pragma unroll
    for (int j = 0; j < code_fragments; ++j) {
      const int own = j * 8 + lane_of_warp() % 4 * 2;
      const float2 half_norm = *reinterpret_cast<const float2*>(half_norms + own);
#pragma unroll
      for (int i = 0; i < row_fragments; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float unit = units[i][r];
          take(i, r, j, 0, fmaf(of[i][j][r * 2], unit, -half_norm.x));
          take(i, r, j, 1, fmaf(of[i][j][r * 2 + 1], unit, -half_norm.y));
        }
      }
    }
  }
};

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
