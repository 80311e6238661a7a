// Screening by groups of four warps (sm_90a): the tensor cores read tiles of 128 rows and 128 codes from shared memory
// themselves. Rows are rounded where they are used, and stay for all codes. With few dimensions numbers are sums of two in
// half precision, nearly as close as float32; with more, a second scan lists the close codes of rows that the first leaves
// open.
#pragma once

#include "kernels/cuda/lanes-inl.h"
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
static_assert(kGroupRows == kTileCodes);  // tiles of both have one size
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
    const float packed = __uint_as_float(bits_or(__float_as_uint(score), mask, number));
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

/// The products of a scan by groups, tile by tile of kGroupDepth dimensions. If three times the dimensions fit into one
/// tile, numbers are sums of two in half precision: rows are first, second, first parts, codes first, first, second.
struct GroupPlan {
  int dim = 0, tiles = 0;
  bool split = false;

  GroupPlan() = default;
  explicit GroupPlan(int64_t dim_)
      : dim(static_cast<int>(dim_)),
        tiles(static_cast<int>((dim_ + kGroupDepth - 1) / kGroupDepth)),
        split(3 * dim_ <= kGroupDepth) {}

  /// Numbers of a row or code in half precision, with zeros up to whole tiles.
  __host__ __device__ int depth() const { return tiles * kGroupDepth; }
  /// Instructions that add products other than zero to a score.
  int products() const { return ((split ? 3 * dim : dim) + kDepthOfMma - 1) / kDepthOfMma; }
  size_t shared() const {
    return sizeof(uint16_t) * static_cast<size_t>(tiles + kGroupStages) * kGroupTile +
           sizeof(float) * (tiles == 1 ? kGroupStages : 2) * kTileCodes;
  }
};

/// A number as a sum of two in half precision.
struct SplitNumber {
  uint16_t first, second;
  float rest, left;  ///< errors of the first, and of both

  __device__ explicit SplitNumber(float value) {
    first = float_to_half(value);
    rest = value - half_to_float(first);
    second = float_to_half(rest);
    left = rest - half_to_float(second);
  }
};

/// Rounds the codes; one warp per code.
__global__ void __launch_bounds__(kPrepareThreads)
    round_group_codes(SearchState state, GroupPlan plan) {
  const auto& task = state.task;
  for (int64_t code = grid_warp(); code < state.padded_size; code += grid_warps()) {
    uint16_t* to = state.codes + code * state.depth;
    clear_vector(state.depth, to);
    if (code >= task.size || state.status[code] != kScreened) continue;
    __syncwarp();
    const int scale = scale_of(magnitude_of(state.facts->largest_norm));
    const auto power = static_cast<float>(power_of_two(scale));
    double square = 0, split_square = 0;
    for (int d = lane_of_warp(); d < plan.dim; d += kWarp) {
      const SplitNumber value((task.codebook[code * task.dim + d] - state.center[d]) * power);
      square += static_cast<double>(value.rest) * value.rest;
      split_square += static_cast<double>(value.left) * value.left;
      to[d] = value.first;
      if (plan.split) to[plan.dim + d] = value.first, to[2 * plan.dim + d] = value.second;
    }
    const double loss = loss_of(sum_of_warp(square), scale),
                 split_loss = loss_of(sum_of_warp(split_square), scale);
    if (lane_of_warp() != 0) continue;
    raise(state.facts->largest_loss, loss);
    raise(state.facts->largest_split_loss, split_loss);
  }
}

// Lanes that round a row together, so that a warp rounds four at once.
constexpr int kRowLanes = kLaneThreads;

/// The norm of a row relative to the centre, as norm_of_row(), for four rows at once.
__device__ inline double norm_of_group_row(const float* from, const float* center, int dim) {
  double square = 0;
  bool finite = true;
#pragma unroll 8
  for (int d = lane_of_warp() % kRowLanes; d < dim; d += kRowLanes) {
    const float number = from[d];
    finite = finite && isfinite(number);
    const double value = number - center[d];
    square += value * value;
  }
  const double norm = sqrt(lane_total(square)) * kNormSlack;
  if (lane_total(finite ? 0 : 1) > 0) return NAN;
  return norm < kLargestNorm ? norm : HUGE_VAL;
}

/// Rounds rows of the search into their lines of the tiles in shared memory, four at once, and returns the value of one
/// unit of the products of each. A row of -1 is padding.
template <Scan scan>
__device__ inline float load_group_rows(const SearchState& state, const GroupPlan& plan,
                                        int64_t row, int line, uint16_t* tiles) {
  const int dim = plan.dim, own = lane_of_warp() % kRowLanes;
  const float* from = state.task.x + max(row, int64_t{0}) * dim;
  const double norm = norm_of_group_row(from, state.center, row < 0 ? 0 : dim);
  const bool usable = row >= 0 && norm < kLargestNorm;
  const int scale = usable ? scale_of(norm) : 0, numbers = usable ? dim : 0;
  const auto power = static_cast<float>(power_of_two(scale));
  double square = 0, split_square = 0;
  const auto round = [&](int d) {
    const SplitNumber value(d < numbers ? (from[d] - state.center[d]) * power : 0.0f);
    square += static_cast<double>(value.rest) * value.rest;
    if constexpr (scan == Scan::kSplit)
      split_square += static_cast<double>(value.left) * value.left;
    return value;
  };
  if constexpr (scan == Scan::kSplit) {
    const auto to = [&](int d) -> uint16_t& { return tiles[place_in_group_tile(line, d)]; };
    for (int d = own; d < dim; d += kRowLanes) {
      const SplitNumber value = round(d);
      to(d) = value.first, to(dim + d) = value.second, to(2 * dim + d) = value.first;
    }
    for (int d = 3 * dim + own; d < kGroupDepth; d += kRowLanes) to(d) = 0;
  } else {
#pragma unroll 4
    for (int d = 2 * own; d < plan.depth(); d += 2 * kRowLanes) {
      const SplitNumber one = round(d), other = round(d + 1);
      uint16_t* const to =
          tiles + d / kGroupDepth * kGroupTile + place_in_group_tile(line, d % kGroupDepth);
      *reinterpret_cast<uint32_t*>(to) = one.first | static_cast<uint32_t>(other.first) << 16;
    }
  }
  const bool writes = own == 0 && row >= 0;
  const double loss = loss_of(lane_total(square), scale);
  if (writes) {
    state.norms[row] = __double2float_ru(norm);
    state.losses[row] = usable ? __double2float_ru(loss) : 0.0f;
  }
  if constexpr (scan == Scan::kSplit) {
    const double split_loss = loss_of(lane_total(split_square), scale);
    if (writes) state.split_losses[row] = usable ? __double2float_ru(split_loss) : 0.0f;
  }
  return unit_of(scale, state.facts->bound);
}

/// Starts this thread's share of the copies of a tile of codes.
__device__ inline void copy_group_tile(const uint16_t* codes, int stride, uint16_t* stage) {
  constexpr int kPieces = kGroupDepth / 8;  // of 16 bytes
  constexpr int kApart = kGroupThreads / kPieces;
  static_assert(kApart % 8 == 0, "the lines of a thread are permuted alike");
  const int line = static_cast<int>(threadIdx.x) / kPieces,
            part = static_cast<int>(threadIdx.x) % kPieces * 8;
  const uint16_t* from = codes + line * stride + part;
  uint16_t* const to = stage + place_in_group_tile(line, part);
#pragma unroll
  for (int i = 0; i < kTileCodes / kApart; ++i, from += kApart * stride)
    copy_async_16(to + i * kApart * kGroupDepth, from);
}

/// What a scan by groups does with scores.
enum class GroupScan {
  kClose,     ///< completes each row that is certain
  kSegments,  ///< scans one of state.segments ranges of codes, so that few rows occupy many blocks; close_segments follows
  kCollect    ///< lists the codes that reach the limits of the rows, by ranges of codes too
};

/// Where the rows of a warp stand, and what it does with the scores of a tile of codes.
template <GroupScan goal>
struct GroupRows {
  PackedContest contests[4];  // by fragment, even or odd, and half of the rows
  float units[1][2], limits[2];
  int64_t entries[2];

  template <typename Sums>
  __device__ void take(const SearchState& state, const Sums& sums, const float* half_norms,
                       int tile, unsigned mask) {
    if constexpr (goal == GroupScan::kCollect) {
      sums.for_places(half_norms, units, [&](int, int r, int j, int c, float score) {
        if (score < limits[r]) return;
        const int code = tile * kTileCodes + j * 8 + lane_of_warp() % 4 * 2 + c;
        collect_rival(state, entries[r], code);
      });
    } else {
      // Fragments are those of a contest in turn: number 2 m + c is adjacent code c of its fragment m.
      sums.for_places(half_norms, units, [&](int, int r, int j, int c, float score) {
        contests[j % 2 * 2 + r].take(score, mask, static_cast<unsigned>(j / 2 * 2 + c));
      });
#pragma unroll
      for (int own = 0; own < 4; ++own) contests[own].end_tile(tile);
    }
  }
};

constexpr int kGroupWarpRows = kGroupRows / (kGroupThreads / kWarp);

/// Rounds the rows of a list from `first` on into the tiles `to`, each warp those whose scores it gets.
template <Scan scan, GroupScan goal>
__device__ inline void begin_group_rows(const SearchState& state, const GroupPlan& plan,
                                        const RowList& list, int64_t first, uint16_t* to,
                                        GroupRows<goal>& rows) {
  constexpr int kAtOnce = kWarp / kRowLanes;
  const int lane = lane_of_warp(), first_line = warp_of_block() * kGroupWarpRows;
  const int64_t count = list.size();
  float own_unit = 0;  // of line first_line + lane
  for (int i = 0; i < kGroupWarpRows; i += kAtOnce) {
    const int line = first_line + i + lane / kRowLanes;
    const int64_t row = first + line < count ? list.row(first + line) : -1;
    const float unit = load_group_rows<scan>(state, plan, row, line, to);
    const float unit_of_lane = __shfl_sync(kWholeWarp, unit, lane % kAtOnce * kRowLanes);
    if (lane / kAtOnce == i / kAtOnce) own_unit = unit_of_lane;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int line = r * 8 + lane / 4;
    rows.units[0][r] = __shfl_sync(kWholeWarp, own_unit, line);
    if constexpr (goal == GroupScan::kCollect) {
      const int64_t place = first + first_line + line;
      rows.entries[r] = place < count ? list.entry(place) : -1;
      rows.limits[r] = place < count ? state.limits[rows.entries[r]] : HUGE_VALF;
    }
  }
}

/// Joins the contests of rows in `memory`, and closes the rows or keeps their contests for close_segments.
template <Scan scan, GroupScan goal>
__device__ inline void end_group_rows(const SearchState& state, const RowList& list, int64_t first,
                                      int segment, const GroupRows<goal>& rows, void* memory) {
  const int lane = lane_of_warp(), first_line = warp_of_block() * kGroupWarpRows;
  const Contests table(memory, kGroupRows, kGroupLanes);
#pragma unroll
  for (int odd = 0; odd < 2; ++odd)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      table.put(first_line + r * 8 + lane / 4, odd * 4 + lane % 4,
                rows.contests[odd * 2 + r].opened(odd));
  __syncthreads();
  const auto at = static_cast<int>(threadIdx.x);
  const int64_t place = first + at;
  if (at >= kGroupRows || place >= list.size()) return;
  if constexpr (goal == GroupScan::kSegments) {
    const Contests of_segments(state.segment_contests, state.task.tokens, state.segments);
    of_segments.put(place, segment, table.of_row(at));
  } else {
    close_row<scan>(state, table, at, list.row(place), list.entry(place));
  }
}

/// The stages through which tiles of codes come into shared memory.
struct GroupStages {
  const SearchState& state;
  const GroupPlan& plan;
  uint16_t* tiles;
  int tile, last_tile, step = 0;  ///< to load next

  __device__ GroupStages(const SearchState& state_, const GroupPlan& plan_, uint16_t* tiles_,
                         const CodeRange& range)
      : state(state_),
        plan(plan_),
        tiles(tiles_),
        tile(static_cast<int>(range.begin)),
        last_tile(static_cast<int>(range.end)) {
    for (int stage = 0; stage < kGroupStages - 1; ++stage) load_next(stage);
  }
  __device__ static int before(int stage) { return stage == 0 ? kGroupStages - 1 : stage - 1; }
  /// Half norms of a tile arrive with its first step, kGroupStages - 1 steps ahead: with one step a tile each stage has
  /// its own, otherwise every other tile.
  __device__ float* norms_of(int own_tile, int stage) const {
    auto* const norms = reinterpret_cast<float*>(tiles + kGroupStages * kGroupTile);
    return norms + (plan.tiles == 1 ? stage : own_tile % 2) * kTileCodes;
  }
  __device__ void load_next(int stage) {
    if (tile < last_tile) {
      const int64_t code = static_cast<int64_t>(tile) * kTileCodes;
      constexpr int kNumbers = 4;  // in 16 bytes
      const int at = static_cast<int>(threadIdx.x) * kNumbers;
      if (step == 0 && at < kTileCodes)
        copy_async_16(norms_of(tile, stage) + at, state.half_norms + code + at);
      copy_group_tile(state.codes + code * plan.depth() + step * kGroupDepth, plan.depth(),
                      tiles + stage * kGroupTile);
      if (++step == plan.tiles) step = 0, ++tile;
    }
    commit_copies();  // even if the group is empty: stages are counted by groups
  }
};

template <Scan scan, GroupScan goal>
__device__ inline void scan_by_groups(const SearchState& state, const GroupPlan& plan,
                                      const RowList& list) {
  auto* const row_tiles = shared_memory<uint16_t>();
  uint16_t* const code_tiles = row_tiles + plan.tiles * kGroupTile;
  const uint16_t* const own_rows = row_tiles + warp_of_block() / 4 * 64 * kGroupDepth;
  const int segments = goal == GroupScan::kClose ? 1 : state.segments;
  const auto segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(segments));
  const CodeRange range = part_of_codes(state.padded_size / kTileCodes, segment, segments);
  const int64_t count = list.size();
  // By a shuffle, so that compilers do not know it: an instruction takes only one constant.
  const unsigned mask = __shfl_sync(kWholeWarp, ~15U, 0);

  for (int64_t first = static_cast<int64_t>(blockIdx.x / segments) * kGroupRows; first < count;
       first += static_cast<int64_t>(gridDim.x / segments) * kGroupRows) {
    GroupStages stages(state, plan, code_tiles, range);
    GroupRows<goal> rows;
    begin_group_rows<scan>(state, plan, list, first, row_tiles, rows);
    int stage = 0;
    for (auto tile = static_cast<int>(range.begin); tile < stages.last_tile; ++tile) {
      HalfSums<1, kGroupFragments> sums;
      for (int step = 0; step < plan.tiles; ++step) {
        wait_for_copies<kGroupStages - 2>();
        publish_to_group_products();
        // All copies of this step are complete, and no group computes on the stage loaded next.
        __syncthreads();
        multiply_add_group(sums.of[0], own_rows + step * kGroupTile,
                           code_tiles + stage * kGroupTile, step > 0,
                           [&] { stages.load_next(GroupStages::before(stage)); });
        if (++stage == kGroupStages) stage = 0;
      }
      rows.take(state, sums, stages.norms_of(tile, GroupStages::before(stage)), tile, mask);
    }
    wait_for_copies<0>();
    __syncthreads();  // before the table of contests reuses the stages, or the next rows their tiles
    if constexpr (goal != GroupScan::kCollect) {
      end_group_rows<scan>(state, list, first, segment, rows, code_tiles);
      __syncthreads();  // before stages reuse the table
    }
  }
}

template <Scan scan, GroupScan goal>
__global__ void __launch_bounds__(kGroupThreads, 2)
    scan_groups(SearchState state, GroupPlan plan, RowList list) {
  if constexpr (kHasGroupProducts) scan_by_groups<scan, goal>(state, plan, list);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
