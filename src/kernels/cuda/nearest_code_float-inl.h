// Screening in float32 on CUDA cores: of all rows if there are few dimensions, and of the rows that
// half precision left open. A thread computes 4 rows by 4 codes.
#pragma once

#include "kernels/cuda/nearest_code_lists-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kFloatThreads = 256;
constexpr int kFloatDepth = 16;  // dimensions per round, at most

/// Tiles of `rows` rows; tiles with fewer rows hold more codes, and there are more of them.
template <int rows>
struct FloatTile {
  static constexpr int kLanes = kFloatThreads / (rows / 4);  // threads that share a row
  static constexpr int kCodes = kLanes * 4;
  static constexpr int kRowStride = rows + 4, kCodeStride = kCodes + 1;
  static constexpr size_t kBytes = kFloatDepth * (kRowStride + kCodeStride) * sizeof(float);
  static constexpr size_t kContestBytes = Contests::bytes(rows, kLanes);
  static constexpr size_t kShared = kBytes > kContestBytes ? kBytes : kContestBytes;
  static_assert(kShared <= 48 * 1024);
};

/// Loads vectors minus the centre, one dimension per line of `stride`; zeros
/// beyond `count` and `dim`.
template <int vectors, int stride, int depth_of_round, typename Place>
__device__ inline void load_centered(const SearchState& state, const float* from, int64_t count,
                                     int64_t depth, const Place& place, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < vectors * depth_of_round;
       i += kFloatThreads) {
    const int vector = i / depth_of_round, line = i % depth_of_round;
    const int64_t d = depth + line;
    float value = 0;
    if (vector < count && d < state.task.dim)
      value = from[place(vector) * state.task.dim + d] - state.center[d];
    to[line * stride + vector] = value;
  }
}

/// Scans all codes for a tile of rows; or, with `split`, one of state.segments ranges of codes, so
/// that few rows occupy many blocks. close_segments then completes the rows.
template <int tile_rows, int depth_of_round, bool split>
__global__ void __launch_bounds__(kFloatThreads, 2) scan_float(SearchState state, RowList list) {
  using Tile = FloatTile<tile_rows>;
  const int segments = split ? state.segments : 1;
  const auto segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(segments));
  auto* rows = shared_memory<float>();
  float* codes = rows + depth_of_round * Tile::kRowStride;
  const int lane = static_cast<int>(threadIdx.x) % Tile::kLanes,
            group = static_cast<int>(threadIdx.x) / Tile::kLanes * 4;
  const int64_t count = list.size();
  const int64_t begin = state.task.size * segment / segments,
                size = state.task.size * (segment + 1) / segments;

  for (int64_t first = static_cast<int64_t>(blockIdx.x / segments) * tile_rows; first < count;
       first += static_cast<int64_t>(gridDim.x / segments) * tile_rows) {
    Contest contests[4];
    for (int64_t code = begin; code < size; code += Tile::kCodes) {
      float sums[4][4] = {};
      for (int64_t depth = 0; depth < state.task.dim; depth += depth_of_round) {
        __syncthreads();  // before data still in use is overwritten
        load_centered<tile_rows, Tile::kRowStride, depth_of_round>(
            state, state.task.x, count - first, depth,
            [&](int vector) { return list.row(first + vector); }, rows);
        load_centered<Tile::kCodes, Tile::kCodeStride, depth_of_round>(
            state, state.task.codebook, size - code, depth,
            [&](int vector) { return code + vector; }, codes);
        __syncthreads();
#pragma unroll
        for (int line = 0; line < depth_of_round; ++line) {
          const float4 x = *reinterpret_cast<const float4*>(rows + line * Tile::kRowStride + group);
          const float* c = codes + line * Tile::kCodeStride + lane;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float value = c[j * Tile::kLanes];
            sums[0][j] = fmaf(x.x, value, sums[0][j]);
            sums[1][j] = fmaf(x.y, value, sums[1][j]);
            sums[2][j] = fmaf(x.z, value, sums[2][j]);
            sums[3][j] = fmaf(x.w, value, sums[3][j]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t index = code + lane + j * Tile::kLanes;
        const float half_norm = index < size ? state.half_norms[index] : HUGE_VALF;
#pragma unroll
        for (int r = 0; r < 4; ++r)
          contests[r].take(sums[r][j] - half_norm, static_cast<int32_t>(index));
      }
    }
    __syncthreads();  // before the table of contests reuses the tiles
    const Contests table(rows, tile_rows, Tile::kLanes);
#pragma unroll
    for (int r = 0; r < 4; ++r) table.put(group + r, lane, contests[r]);
    __syncthreads();
    const auto place = static_cast<int>(threadIdx.x);
    if (place < tile_rows && first + place < count) {
      if constexpr (split) {
        const Contests of_segments(state.segment_contests, state.task.tokens, segments);
        of_segments.put(first + place, segment, table.of_row(place));
      } else {
        close_row<false>(state, table, place, list.row(first + place));
      }
    }
    __syncthreads();
  }
}

/// Completes the rows of a list whose codes were split.
__global__ void __launch_bounds__(kFloatThreads) close_segments(SearchState state, RowList list) {
  const Contests contests(state.segment_contests, state.task.tokens, state.segments);
  const int64_t count = list.size();
  for (int64_t place = grid_thread(); place < count; place += grid_threads())
    close_row<false>(state, contests, place, list.row(place));
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
