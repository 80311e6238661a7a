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
  static constexpr int kRowStride = rows + 4, kCodeStride = kCodes + 4;
  static constexpr size_t kBytes = kFloatDepth * (kRowStride + kCodeStride) * sizeof(float);
  static constexpr size_t kContestBytes = Contests::bytes(rows, kLanes);
  static constexpr size_t kShared = kBytes > kContestBytes ? kBytes : kContestBytes;
  static_assert(kShared <= 48 * 1024);
};

/// This thread's share of a tile of `vectors` vectors minus the centre, `lines` dimensions at a time: fetched into
/// registers, then stored with one dimension per line of `stride`. Zeros beyond the vectors and dimensions there are.
template <int vectors, int stride, int lines>
struct CenteredTile {
  static constexpr int kApart = kFloatThreads / lines;  // vectors between those of a thread
  static constexpr int kOwn = vectors / kApart;
  static_assert(vectors % kApart == 0);
  float values[kOwn];

  __device__ static int line() { return static_cast<int>(threadIdx.x) % lines; }
  __device__ static int vector() { return static_cast<int>(threadIdx.x) / lines; }

  /// place(i): the offset of this thread's vector i in `from`.
  template <typename Place>
  __device__ void fetch(const SearchState& state, const float* from, int64_t count, int64_t depth,
                        const Place& place) {
    const int64_t d = depth + line();
    const bool inside = d < state.task.dim;
    const float center = inside ? state.center[d] : 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool real = inside && vector() + i * kApart < count;
      values[i] = real ? from[place(i) + d] - center : 0.0f;
    }
  }
  __device__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[line() * stride + vector() + i * kApart] = values[i];
  }
};

/// Scans all codes for a tile of rows; or, with `split`, one of state.segments ranges of codes, so
/// that few rows occupy many blocks. close_segments then completes the rows.
template <int tile_rows, int depth_of_round, bool split>
__global__ void __launch_bounds__(kFloatThreads, 2) scan_float(SearchState state, RowList list) {
  using Tile = FloatTile<tile_rows>;
  constexpr bool kAhead = !split;  // the many codes of a list's tile would take too many registers
  const int segments = split ? state.segments : 1;
  const auto segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(segments));
  auto* rows = shared_memory<float>();
  float* codes = rows + depth_of_round * Tile::kRowStride;
  const int lane = static_cast<int>(threadIdx.x) % Tile::kLanes,
            group = static_cast<int>(threadIdx.x) / Tile::kLanes * 4;
  const int64_t count = list.size();
  const CodeRange range = part_of_codes(state.task.size, segment, segments);
  const int64_t dim = state.task.dim;

  for (int64_t first = static_cast<int64_t>(blockIdx.x / segments) * tile_rows; first < count;
       first += static_cast<int64_t>(gridDim.x / segments) * tile_rows) {
    CenteredTile<tile_rows, Tile::kRowStride, depth_of_round> next_rows;
    CenteredTile<Tile::kCodes, Tile::kCodeStride, depth_of_round> next_codes;
    const auto fetch = [&](int64_t code, int64_t depth) {
      next_rows.fetch(state, state.task.x, count - first, depth, [&](int i) {
        return list.row(first + next_rows.vector() + i * next_rows.kApart) * dim;
      });
      const int64_t own_code = (code + next_codes.vector()) * dim;
      next_codes.fetch(state, state.task.codebook, range.end - code, depth,
                       [&](int i) { return own_code + i * next_codes.kApart * dim; });
    };
    Contest contests[4];
    if (kAhead) fetch(range.begin, 0);
    for (int64_t code = range.begin; code < range.end; code += Tile::kCodes) {
      float sums[4][4] = {}, half_norms[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t index = code + lane * 4 + j;
        half_norms[j] = index < range.end ? state.half_norms[index] : HUGE_VALF;
      }
      for (int64_t depth = 0; depth < dim; depth += depth_of_round) {
        if (!kAhead) fetch(code, depth);
        __syncthreads();  // before data still in use is overwritten
        next_rows.store(rows);
        next_codes.store(codes);
        __syncthreads();
        if (kAhead && depth + depth_of_round < dim) {
          fetch(code, depth + depth_of_round);
        } else if (kAhead && code + Tile::kCodes < range.end) {
          fetch(code + Tile::kCodes, 0);
        }
#pragma unroll
        for (int line = 0; line < depth_of_round; ++line) {
          const float4 x = *reinterpret_cast<const float4*>(rows + line * Tile::kRowStride + group);
          const float4 c =
              *reinterpret_cast<const float4*>(codes + line * Tile::kCodeStride + lane * 4);
          const float own[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[0][j] = fmaf(x.x, own[j], sums[0][j]);
            sums[1][j] = fmaf(x.y, own[j], sums[1][j]);
            sums[2][j] = fmaf(x.z, own[j], sums[2][j]);
            sums[3][j] = fmaf(x.w, own[j], sums[3][j]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto index = static_cast<int32_t>(code) + lane * 4 + j;
#pragma unroll
        for (int r = 0; r < 4; ++r) contests[r].take(sums[r][j] - half_norms[j], index);
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
        close_row<Scan::kFloat>(state, table, place, list.row(first + place),
                                list.entry(first + place));
      }
    }
    __syncthreads();
  }
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
