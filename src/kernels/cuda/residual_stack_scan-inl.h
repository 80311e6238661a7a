// Scan of a level by a block of residual_stack.cu: scores of all codes for the rows of its tile, by
// tensor cores, or in float32 if there are few dimensions.
#pragma once

#include "kernels/cuda/residual_stack_tile-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kStackThreads = kHalfThreads, kStackWarps = kStackThreads / kWarp;
// A vector of few dimensions in float32 is as large as one stage of half precision.
static_assert(kFewDimensions * sizeof(float) == kTileDepth * sizeof(uint16_t));

/// Writes few dimensions minus the centre in float32, padded with zeros; runs in one warp.
template <typename Vector>
__device__ inline void center_vector(const Vector& from, const float* center, int64_t dim,
                                     uint16_t* to) {
  const int d = lane_of_warp();
  if (d < kFewDimensions) reinterpret_cast<float*>(to)[d] = d < dim ? from[d] - center[d] : 0.0f;
}

/// HalfSums::add for few dimensions, with the same rows, codes and sums.
template <int row_fragments, int code_fragments>
__device__ inline void add_few(HalfSums<row_fragments, code_fragments>& sums, int64_t dim,
                               const uint16_t* first_row, int row_stride,
                               const uint16_t* first_code) {
  constexpr int kTogether = 4;
  const auto four = [](const uint16_t* vector, int d) {
    return reinterpret_cast<const float4*>(vector)[d / kTogether];
  };
  const uint16_t* rows = first_row + lane_of_warp() / 4 * row_stride;
  const uint16_t* codes = first_code + lane_of_warp() % 4 * 2 * kTileStride;
  for (int d = 0; d < dim; d += kTogether) {
    float4 x[row_fragments][2];
#pragma unroll
    for (int i = 0; i < row_fragments; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) x[i][r] = four(rows + (i * 16 + r * 8) * row_stride, d);
#pragma unroll
    for (int j = 0; j < code_fragments * 2; ++j) {
      const float4 code = four(codes + (j / 2 * 8 + j % 2) * kTileStride, d);
#pragma unroll
      for (int i = 0; i < row_fragments; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float& sum = sums.of[i][j / 2][r * 2 + j % 2];
          sum = fmaf(x[i][r].x, code.x, sum);
          sum = fmaf(x[i][r].y, code.y, sum);
          sum = fmaf(x[i][r].z, code.z, sum);
          sum = fmaf(x[i][r].w, code.w, sum);
        }
      }
    }
  }
}

/// Calls take(i, r, score, index) for the scores of all codes and this thread's rows. Includes the
/// barriers: rows must be visible before the call, and scratch is free after it.
template <int rows, bool few, typename Take>
__device__ void scan_tile(const SearchState& state, const StackTile& tile, const Take& take) {
  using Shape = StackShape<rows>;
  auto* stages = static_cast<uint16_t*>(tile.scratch);
  const auto depth = static_cast<int>(state.depth), chunks = depth / kTileDepth;
  const int steps = static_cast<int>(state.padded_size / kTileCodes) * chunks;
  const uint16_t* own_rows = tile.halves + Shape::warp_row() * tile.half_stride;
  HalfSums<Shape::kRowFragments, Shape::kCodeFragments> sums;
  sums.clear();

  int code = 0, load_code = 0, load_depth = 0, chunk = 0, place = 0;
  const auto load_next = [&](int step, int to) {
    if (step < steps) {
      copy_tile<kTileCodes>(state.codes + load_depth, load_code, depth, stages + to * kStackStage);
      load_depth += kTileDepth;
      if (load_depth == depth) load_depth = 0, load_code += kTileCodes;
    }
    commit_copies();  // even if the group is empty: stages are counted by groups
  };
  for (int step = 0; step < kStages - 1; ++step) load_next(step, step);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kStages - 2>();
    // All copies of this step are complete, and no thread computes on the stage loaded next.
    __syncthreads();
    load_next(step + kStages - 1, place == 0 ? kStages - 1 : place - 1);
    const uint16_t* own_codes = stages + place * kStackStage + Shape::warp_code() * kTileStride;
    if constexpr (few) {
      add_few(sums, state.task.dim, own_rows, tile.half_stride, own_codes);
    } else {
      sums.add(own_rows + chunk * kTileDepth, tile.half_stride, own_codes);
    }
    if (++place == kStages) place = 0;
    if (++chunk < chunks) continue;
    float units[Shape::kRowFragments][2];  // read anew for each tile, for registers are scarce
#pragma unroll
    for (int i = 0; i < Shape::kRowFragments; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) units[i][r] = tile.units[Shape::row(i, r)];
    const int first = code + Shape::warp_code();
    sums.for_scores(state.half_norms + first, first, units, take);
    sums.clear();
    chunk = 0;
    code += kTileCodes;
  }
  wait_for_copies<0>();
  __syncthreads();
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
