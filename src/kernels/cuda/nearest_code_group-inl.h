// Screening by groups of four warps (sm_90a): the tensor cores read tiles of 128 rows and 128 codes from shared memory
// themselves. Rows are rounded where they are used, and stay for all codes. Some rows at once, or few dimensions, are
// screened with numbers that are sums of two in half precision, nearly as close as float32.
#pragma once

#include "kernels/cuda/nearest_code_prepare-inl.h"
#include "kernels/cuda/nearest_code_sums-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kGroupRows = 128;  // of a block: two groups of 64
constexpr int kGroupThreads = 256;
constexpr int kGroupStages = 3;
constexpr int kGroupTile = kTileCodes * kGroupDepth;  // numbers of a tile of rows or codes
constexpr int kGroupFragments = kTileCodes / 8;
// Threads that share a row; each keeps two contests, of every other fragment of codes.
constexpr int kGroupLanes = 8;
static_assert(kGroupRows == kTileCodes);
static_assert(sizeof(uint16_t) * kGroupStages * kGroupTile >=
              Contests::bytes(kGroupRows, kGroupLanes));
static_assert(kGroupLanes <= kMostRivals, "one rival of each contest is within the list");

/// A contest whose scores carry in their last four bits which of the sixteen scores of a tile they are: fewer instructions
/// than to keep the index beside.
struct PackedContest {
  float best = -HUGE_VALF, second = -HUGE_VALF, before = -HUGE_VALF;
  int tile = 0;

  /// mask: ~15.
  __device__ void take(float score, unsigned mask, unsigned number) {
    const float packed = __uint_as_float((__float_as_uint(score) & mask) | number);
    second = fmaxf(second, fminf(best, packed));
    best = fmaxf(best, packed);
  }
  __device__ void end_tile(int own) {
    tile = best > before ? own : tile;
    before = best;
  }
  /// With its code, for the even fragments of tiles or the odd ones.
  __device__ Contest opened(int odd) const {
    const auto number = static_cast<int>(__float_as_uint(best) & 15U);
    const int fragment = number / 2 * 2 + odd;
    Contest contest;
    contest.best = best, contest.second = second;
    contest.code = tile * kTileCodes + fragment * 8 + lane_of_warp() % 4 * 2 + number % 2;
    return contest;
  }
};

/// The products of a scan, tile by tile of kGroupDepth dimensions. The parts of sums of two halves follow each other:
/// in one tile if they fit, rows as first, second, first and codes as first, first, second; otherwise in tiles of their
/// own.
struct GroupPlan {
  int64_t dim = 0;
  int tiles = 0;       ///< of a vector in half precision
  bool packed = false;  ///< parts are in one tile

  GroupPlan() = default;
  explicit GroupPlan(int64_t dim_)
      : dim(dim_),
        tiles(static_cast<int>((dim_ + kGroupDepth - 1) / kGroupDepth)),
        packed(3 * dim_ <= kGroupDepth) {}

  __host__ __device__ int depth() const { return tiles * kGroupDepth; }
  /// Numbers in memory of a code.
  int code_stride() const { return packed ? kGroupDepth : 2 * depth(); }
  /// Tiles of rows in shared memory.
  __host__ __device__ int row_tiles(Scan scan) const { return scan == Scan::kSplit && !packed ? 2 * tiles : tiles; }
  __host__ __device__ int steps(Scan scan) const {
    return scan == Scan::kSplit && !packed ? 3 * tiles : tiles;
  }
  __device__ int row_tile(int step) const { return step < 2 * tiles ? step : step - 2 * tiles; }
  __device__ int code_tile(int step) const { return step < tiles ? step : step - tiles; }
  /// Instructions that add products other than zero to a score.
  int64_t products(Scan scan) const {
    const auto of_half = (dim + kDepthOfMma - 1) / kDepthOfMma;
    if (scan == Scan::kHalf) return of_half;
    return packed ? (3 * dim + kDepthOfMma - 1) / kDepthOfMma : 3 * of_half;
  }
  size_t shared(Scan scan) const {
    const auto tiles_of_block = static_cast<size_t>(row_tiles(scan) + kGroupStages);
    return sizeof(uint16_t) * tiles_of_block * kGroupTile +
           sizeof(float) * static_cast<size_t>(norm_tiles(scan)) * kTileCodes;
  }
  /// Half norms of a tile of codes arrive with its first step, kGroupStages - 1 steps ahead.
  __host__ __device__ int norm_tiles(Scan scan) const {
    return steps(scan) < kGroupStages - 1 ? kGroupStages : 2;
  }
};

/// Writes the parts of number d of a row; to(place) is where a number goes.
template <Scan scan, typename To>
__device__ inline void put_row_parts(const GroupPlan& plan, int d, uint16_t first, uint16_t second,
                                     const To& to) {
  const auto dim = static_cast<int>(plan.dim);
  to(d) = first;
  if constexpr (scan == Scan::kSplit) {
    to((plan.packed ? dim : plan.depth()) + d) = second;
    if (plan.packed) to(2 * dim + d) = first;
  }
}

/// Rounds a vector minus the centre, times 2^scale, to sums of two numbers in half precision; put(d, first, second) takes
/// them. Returns the norms of the errors of the first and of both, without the scale. Runs in one warp.
template <typename Put>
__device__ inline RowNorms split_vector(const float* from, const float* center, int64_t dim,
                                        int scale, const Put& put) {
  const auto power = static_cast<float>(power_of_two(scale));
  double square = 0, split_square = 0;
  for (int64_t d = lane_of_warp(); d < dim; d += kWarp) {
    const float value = (from[d] - center[d]) * power;
    const uint16_t first = float_to_half(value);
    const float rest = value - half_to_float(first);
    const uint16_t second = float_to_half(rest);
    const double change = rest, split_change = static_cast<double>(rest) - half_to_float(second);
    square += change * change;
    split_square += split_change * split_change;
    put(static_cast<int>(d), first, second);
  }
  // The last term covers underflow in the multiplication by the power of two.
  const auto norm_of = [&](double sum) {
    return (sqrt(sum_of_warp(sum)) * kNormSlack + 0x1p-60) * power_of_two(-scale);
  };
  return {0, norm_of(square), norm_of(split_square)};
}

/// Rounds the codes for all scans; one warp per code.
__global__ void __launch_bounds__(kPrepareThreads) split_codes(SearchState state, GroupPlan plan) {
  for (int64_t code = grid_warp(); code < state.padded_size; code += grid_warps()) {
    const auto& task = state.task;
    uint16_t* to = state.codes + code * state.code_stride;
    clear_vector(state.code_stride, to);
    if (code >= task.size || state.status[code] != kScreened) continue;
    __syncwarp();
    const auto dim = static_cast<int>(task.dim);
    const int scale = scale_of(magnitude_of(state.facts->largest_norm));
    const auto norms =
        split_vector(task.codebook + code * task.dim, state.center, task.dim, scale,
                     [&](int d, uint16_t first, uint16_t second) {
                       to[d] = first;
                       if (plan.packed) to[dim + d] = first;
                       to[(plan.packed ? 2 * dim : plan.depth()) + d] = second;
                     });
    if (lane_of_warp() != 0) continue;
    raise(state.facts->largest_loss, norms.loss);
    raise(state.facts->largest_split_loss, norms.split_loss);
  }
}

/// Rounds a row of the search into its line of the tiles in shared memory, and returns the value of one unit of its
/// products. A row of -1 is padding. Runs in one warp.
template <Scan scan>
__device__ inline float load_group_row(const SearchState& state, const GroupPlan& plan, int64_t row,
                                       int line, uint16_t* tiles) {
  const auto to = [&](int d) -> uint16_t& {
    return tiles[d / kGroupDepth * kGroupTile + place_in_group_tile(line, d % kGroupDepth)];
  };
  const int numbers = plan.row_tiles(scan) * kGroupDepth;
  for (int d = lane_of_warp(); d < numbers; d += kWarp) to(d) = 0;
  if (row < 0) return 0;
  __syncwarp();
  const float* from = state.task.x + row * state.task.dim;
  const double norm = norm_of_row(from, state.center, state.task.dim);
  RowNorms norms = {norm};
  int scale = 0;
  if (norm < kLargestNorm) {
    scale = scale_of(norm);
    norms = split_vector(from, state.center, state.task.dim, scale,
                         [&](int d, uint16_t first, uint16_t second) {
                           put_row_parts<scan>(plan, d, first, second, to);
                         });
  }
  if (lane_of_warp() == 0) {
    state.norms[row] = __double2float_ru(norm);
    state.losses[row] = __double2float_ru(norms.loss);
    state.split_losses[row] = __double2float_ru(norms.split_loss);
  }
  return unit_of(scale, state.facts->bound);
}

/// Starts this thread's share of the copies of a tile of codes.
__device__ inline void copy_group_tile(const uint16_t* codes, int64_t stride, uint16_t* stage) {
  constexpr int kPieces = kGroupDepth / 8;  // of 16 bytes
  constexpr int kApart = kGroupThreads / kPieces;
  const int line = static_cast<int>(threadIdx.x) / kPieces,
            part = static_cast<int>(threadIdx.x) % kPieces * 8;
#pragma unroll
  for (int i = 0; i < kTileCodes / kApart; ++i) {
    const int own = line + i * kApart;
    copy_async_16(stage + place_in_group_tile(own, part), codes + own * stride + part);
  }
}

/// Scans all codes for tiles of rows; or, with `segmented`, one of state.segments ranges of codes, so that few rows occupy
/// many blocks. close_segments then completes the rows.
template <Scan scan, bool segmented>
__device__ inline void scan_by_groups(const SearchState& state, const GroupPlan& plan,
                                      const RowList& list) {
  auto* const rows = shared_memory<uint16_t>();
  uint16_t* const stages = rows + plan.row_tiles(scan) * kGroupTile;
  auto* const norms = reinterpret_cast<float*>(stages + kGroupStages * kGroupTile);
  const int lane = lane_of_warp(), warp = warp_of_block();
  const int segments = segmented ? state.segments : 1, steps = plan.steps(scan);
  const auto segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(segments));
  const CodeRange range = part_of_codes(state.padded_size / kTileCodes, segment, segments);
  const auto first_tile = static_cast<int>(range.begin), last_tile = static_cast<int>(range.end);
  const int norm_tiles = plan.norm_tiles(scan);
  const int64_t count = list.size();

  for (int64_t first = static_cast<int64_t>(blockIdx.x / segments) * kGroupRows; first < count;
       first += static_cast<int64_t>(gridDim.x / segments) * kGroupRows) {
    // The tile of codes and the step to load next, and the places of its half norms and stage.
    int load_tile = first_tile, load_step = 0, load_norms_to = 0, load_stage = 0;
    const auto load_next = [&] {
      if (load_tile < last_tile) {
        const int64_t code = static_cast<int64_t>(load_tile) * kTileCodes;
        if (load_step == 0) {
          constexpr int kNumbers = 4;  // in 16 bytes
          const int at = static_cast<int>(threadIdx.x) * kNumbers;
          if (at < kTileCodes)
            copy_async_16(norms + load_norms_to * kTileCodes + at, state.half_norms + code + at);
          if (++load_norms_to == norm_tiles) load_norms_to = 0;
        }
        copy_group_tile(
            state.codes + code * state.code_stride + plan.code_tile(load_step) * kGroupDepth,
            state.code_stride, stages + load_stage * kGroupTile);
        if (++load_step == steps) load_step = 0, ++load_tile;
        if (++load_stage == kGroupStages) load_stage = 0;
      }
      commit_copies();  // even if the group is empty: stages are counted by groups
    };
    for (int step = 0; step < kGroupStages - 1; ++step) load_next();

    // Each warp rounds the rows whose scores it gets.
    constexpr int kWarpRows = kGroupRows / (kGroupThreads / kWarp);
    float own_unit = 0;
    for (int i = 0; i < kWarpRows; ++i) {
      const int line = warp * kWarpRows + i;
      const int64_t row = first + line < count ? list.row(first + line) : -1;
      const float unit = load_group_row<scan>(state, plan, row, line, rows);
      if (lane == i) own_unit = unit;
    }
    float units[1][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) units[0][r] = __shfl_sync(kWholeWarp, own_unit, r * 8 + lane / 4);

    // By a shuffle, so that compilers do not know it: an instruction takes only one constant.
    const unsigned mask = __shfl_sync(kWholeWarp, ~15U, 0);
    PackedContest contests[4];  // by fragment, even or odd, and half of the rows
    int stage = 0, norms_at = 0;
    for (int tile = first_tile; tile < last_tile; ++tile) {
      HalfSums<1, kGroupFragments> sums;
      for (int step = 0; step < steps; ++step) {
        wait_for_copies<kGroupStages - 2>();
        publish_to_group_products();
        // All copies of this step are complete, and no group computes on the stage loaded next.
        __syncthreads();
        load_next();
        multiply_add_group(sums.of[0],
                           rows + plan.row_tile(step) * kGroupTile + warp / 4 * 64 * kGroupDepth,
                           stages + stage * kGroupTile, step > 0);
        if (++stage == kGroupStages) stage = 0;
      }
      // Fragments are those of a contest in turn: number 2 m + c is adjacent code c of its fragment m.
      sums.for_places(norms + norms_at * kTileCodes, units,
                      [&](int, int r, int j, int c, float score) {
                        contests[j % 2 * 2 + r].take(score, mask, static_cast<unsigned>(j / 2 * 2 + c));
                      });
#pragma unroll
      for (int own = 0; own < 4; ++own) contests[own].end_tile(tile);
      if (++norms_at == norm_tiles) norms_at = 0;
    }
    wait_for_copies<0>();
    __syncthreads();  // before the table of contests reuses the stages

    const Contests table(stages, kGroupRows, kGroupLanes);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        table.put(warp * kWarpRows + r * 8 + lane / 4, half * 4 + lane % 4,
                  contests[half * 2 + r].opened(half));
    __syncthreads();
    const auto place = static_cast<int>(threadIdx.x);
    if (place < kGroupRows && first + place < count) {
      if constexpr (segmented) {
        const Contests of_segments(state.segment_contests, state.task.tokens, segments);
        of_segments.put(first + place, segment, table.of_row(place));
      } else {
        close_row<scan>(state, table, place, list.row(first + place));
      }
    }
    __syncthreads();  // before stages reuse the table
  }
}

template <Scan scan, bool segmented, int blocks>
__global__ void __launch_bounds__(kGroupThreads, blocks)
    scan_groups(SearchState state, GroupPlan plan, RowList list) {
  if constexpr (kHasGroupProducts) scan_by_groups<scan, segmented>(state, plan, list);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
