// Screening on tensor cores: tiles of 128 rows by 128 codes in half precision, accumulated in
// float32. Best and runner-up of each row stay in registers until its last code.
#pragma once

#include "kernels/cuda/nearest_code_sums-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kTileRows = 128;
constexpr int kWarpsOfRows = 4, kWarpsOfCodes = 2;
constexpr int kWarpRows = kTileRows / kWarpsOfRows;     // 32: two fragments of 16
constexpr int kWarpCodes = kTileCodes / kWarpsOfCodes;  // 64: eight fragments of 8
constexpr int kRowFragments = kWarpRows / 16, kCodeFragments = kWarpCodes / 8;
constexpr int kHalfLanes = kWarpsOfCodes * 4;  // threads that share a row
constexpr int kStageHalves = (kTileRows + kTileCodes) * kTileStride;
constexpr size_t kStagesBytes = sizeof(uint16_t) * kStages * kStageHalves;
// Half norms of a tile of codes arrive with its first stage, kStages - 1 tiles ahead at most.
constexpr int kNormTiles = kStages + 1;
constexpr size_t kHalfShared = kStagesBytes + sizeof(float) * kNormTiles * kTileCodes;
static_assert(kStagesBytes >= Contests::bytes(kTileRows, kHalfLanes));
static_assert(kHalfLanes <= kMostRivals, "one rival of each thread is within the list");

__device__ inline float* norms_of_tile(int code, float* norms) {
  return norms + code / kTileCodes % kNormTiles * kTileCodes;
}

/// Starts to copy the half norms of a tile of codes to their place among kNormTiles.
__device__ inline void load_norms(const SearchState& state, int code, float* norms) {
  constexpr int kNumbers = 4;  // in 16 bytes
  const int at = static_cast<int>(threadIdx.x) * kNumbers;
  if (at < kTileCodes) copy_async_16(norms_of_tile(code, norms) + at, state.half_norms + code + at);
}

__global__ void __launch_bounds__(kHalfThreads, 2) scan_half(SearchState state) {
  auto* shared = shared_memory<uint16_t>();
  auto* norms = reinterpret_cast<float*>(shared + kStages * kStageHalves);
  const int lane = lane_of_warp(), warp = warp_of_block();
  const int warp_row = warp / kWarpsOfCodes * kWarpRows,
            warp_code = warp % kWarpsOfCodes * kWarpCodes;
  const auto depth = static_cast<int>(state.depth), chunks = depth / kTileDepth;
  const int steps = static_cast<int>(state.padded_size / kTileCodes) * chunks;

  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kTileRows; row < state.padded_tokens;
       row += static_cast<int64_t>(gridDim.x) * kTileRows) {
    float units[kRowFragments][2];
    RowContests<kRowFragments> contests;
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        units[i][r] = state.units[row + warp_row + i * 16 + r * 8 + lane / 4];
    HalfSums<kRowFragments, kCodeFragments> sums;
    sums.clear();

    // The stage to load next and the stage being computed, as (tile of codes, chunk).
    const uint16_t* rows = state.rows + row * state.depth;
    int load_code = 0, code = 0;
    int load_depth = 0, chunk = 0, place_of_stage = 0;
    const auto load_next = [&](int step, int to) {
      if (step < steps) {
        uint16_t* stage = shared + to * kStageHalves;
        if (load_depth == 0) load_norms(state, load_code, norms);
        copy_tile<kTileRows>(rows + load_depth, 0, depth, stage);
        copy_tile<kTileCodes>(state.codes + load_depth, load_code, depth,
                              stage + kTileRows * kTileStride);
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
      load_next(step + kStages - 1, place_of_stage == 0 ? kStages - 1 : place_of_stage - 1);
      const uint16_t* stage = shared + place_of_stage * kStageHalves;
      sums.add(stage + warp_row * kTileStride, kTileStride,
               stage + (kTileRows + warp_code) * kTileStride);
      if (++place_of_stage == kStages) place_of_stage = 0;
      if (++chunk < chunks) continue;
      sums.for_scores(
          norms_of_tile(code, norms) + warp_code, code + warp_code, units,
          [&](int i, int r, float score, int32_t index) { contests.at(i, r).take(score, index); });
      sums.clear();
      chunk = 0;
      code += kTileCodes;
    }
    wait_for_copies<0>();
    __syncthreads();  // before the table of contests reuses the stages

    const Contests table(shared, kTileRows, kHalfLanes);
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        table.put(warp_row + i * 16 + r * 8 + lane / 4, warp % kWarpsOfCodes * 4 + lane % 4,
                  contests.at(i, r));
    __syncthreads();
    const auto place = static_cast<int>(threadIdx.x);
    if (place < kTileRows && row + place < state.task.tokens)
      close_row<Scan::kHalf>(state, table, place, row + place, -1);
    __syncthreads();  // before stages reuse the table
  }
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
