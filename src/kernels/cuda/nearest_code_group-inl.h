// Screening by groups of four warps (sm_90a): the tensor cores read tiles of 128 rows and 128 codes from shared memory
// themselves. Rows are rounded where they are used, and stay for all codes. With few dimensions numbers are sums of two in
// half precision, nearly as close as float32; with more, a second scan lists the close codes of rows that the first leaves
// open.
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

/// The norm of an error in half precision from the sum of its squares. The last term covers underflow in the
/// multiplication by 2^scale.
__device__ inline double loss_of(double square, int scale) {
  return (sqrt(square) * kNormSlack + 0x1p-60) * power_of_two(-scale);
}

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
constexpr int kRowLanes = 8;

template <typename T>
__device__ inline T sum_of_row_lanes(T value) {
  for (int step = kRowLanes / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}

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
  const double norm = sqrt(sum_of_row_lanes(square)) * kNormSlack;
  const int infinite = sum_of_row_lanes(finite ? 0 : 1);
  if (infinite > 0) return NAN;
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
      uint16_t* const to = tiles + d / kGroupDepth * kGroupTile +
                           place_in_group_tile(line, d % kGroupDepth);
      *reinterpret_cast<uint32_t*>(to) = one.first | static_cast<uint32_t>(other.first) << 16;
    }
  }
  const double loss = loss_of(sum_of_row_lanes(square), scale),
               split_loss = loss_of(sum_of_row_lanes(split_square), scale);
  if (own == 0 && row >= 0) {
    state.norms[row] = __double2float_ru(norm);
    state.losses[row] = usable ? __double2float_ru(loss) : 0.0f;
    if (scan == Scan::kSplit) state.split_losses[row] = usable ? __double2float_ru(split_loss) : 0.0f;
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
  float limits[2];
  int64_t entries[2];

  template <typename Sums>
  __device__ void take(const SearchState& state, const Sums& sums, const float* half_norms,
                       int tile, const float (&units)[1][2], unsigned mask) {
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

template <Scan scan, GroupScan goal>
__device__ inline void scan_by_groups(const SearchState& state, const GroupPlan& plan,
                                      const RowList& list) {
  constexpr int kWarpRows = kGroupRows / (kGroupThreads / kWarp);
  auto* const rows = shared_memory<uint16_t>();
  uint16_t* const stages = rows + plan.tiles * kGroupTile;
  auto* const norms = reinterpret_cast<float*>(stages + kGroupStages * kGroupTile);
  const int lane = lane_of_warp(), warp = warp_of_block();
  const int segments = goal == GroupScan::kClose ? 1 : state.segments;
  const auto segment = static_cast<int>(blockIdx.x % static_cast<unsigned>(segments));
  const CodeRange range = part_of_codes(state.padded_size / kTileCodes, segment, segments);
  const auto first_tile = static_cast<int>(range.begin), last_tile = static_cast<int>(range.end);
  // Half norms of a tile arrive with its first step, kGroupStages - 1 steps ahead: with one step a tile each stage has its
  // own, otherwise every other tile.
  const auto norms_of = [&](int tile, int stage) {
    return norms + (plan.tiles == 1 ? stage : tile % 2) * kTileCodes;
  };
  const int64_t count = list.size();
  // By a shuffle, so that compilers do not know it: an instruction takes only one constant.
  const unsigned mask = __shfl_sync(kWholeWarp, ~15U, 0);

  for (int64_t first = static_cast<int64_t>(blockIdx.x / segments) * kGroupRows; first < count;
       first += static_cast<int64_t>(gridDim.x / segments) * kGroupRows) {
    int load_tile = first_tile, load_step = 0;  // to load next
    const auto load_next = [&](int stage) {
      if (load_tile < last_tile) {
        const int64_t code = static_cast<int64_t>(load_tile) * kTileCodes;
        constexpr int kNumbers = 4;  // in 16 bytes
        const int at = static_cast<int>(threadIdx.x) * kNumbers;
        if (load_step == 0 && at < kTileCodes)
          copy_async_16(norms_of(load_tile, stage) + at, state.half_norms + code + at);
        copy_group_tile(state.codes + code * plan.depth() + load_step * kGroupDepth, plan.depth(),
                        stages + stage * kGroupTile);
        if (++load_step == plan.tiles) load_step = 0, ++load_tile;
      }
      commit_copies();  // even if the group is empty: stages are counted by groups
    };
    for (int stage = 0; stage < kGroupStages - 1; ++stage) load_next(stage);

    // Each warp rounds the rows whose scores it gets.
    constexpr int kAtOnce = kWarp / kRowLanes;
    float own_unit = 0;
    for (int i = 0; i < kWarpRows; i += kAtOnce) {
      const int line = warp * kWarpRows + i + lane / kRowLanes;
      const int64_t row = first + line < count ? list.row(first + line) : -1;
      const float unit = load_group_rows<scan>(state, plan, row, line, rows);
      const float unit_of_lane = __shfl_sync(kWholeWarp, unit, lane % kAtOnce * kRowLanes);
      if (lane / kAtOnce == i / kAtOnce) own_unit = unit_of_lane;
    }
    float units[1][2];
    GroupRows<goal> own;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int line = r * 8 + lane / 4;
      units[0][r] = __shfl_sync(kWholeWarp, own_unit, line);
      if constexpr (goal == GroupScan::kCollect) {
        const int64_t place = first + warp * kWarpRows + line;
        own.entries[r] = place < count ? list.entry(place) : -1;
        own.limits[r] = place < count ? state.limits[own.entries[r]] : HUGE_VALF;
      }
    }

    int stage = 0;
    for (int tile = first_tile; tile < last_tile; ++tile) {
      HalfSums<1, kGroupFragments> sums;
      for (int step = 0; step < plan.tiles; ++step) {
        wait_for_copies<kGroupStages - 2>();
        publish_to_group_products();
        // All copies of this step are complete, and no group computes on the stage loaded next.
        __syncthreads();
        multiply_add_group(sums.of[0], rows + step * kGroupTile + warp / 4 * 64 * kGroupDepth,
                           stages + stage * kGroupTile, step > 0,
                           [&] { load_next(stage == 0 ? kGroupStages - 1 : stage - 1); });
        if (++stage == kGroupStages) stage = 0;
      }
      const int last_stage = stage == 0 ? kGroupStages - 1 : stage - 1;
      own.take(state, sums, norms_of(tile, last_stage), tile, units, mask);
    }
    wait_for_copies<0>();
    __syncthreads();  // before the table of contests reuses the stages, or the next rows
    if constexpr (goal == GroupScan::kCollect) continue;

    const Contests table(stages, kGroupRows, kGroupLanes);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        table.put(warp * kWarpRows + r * 8 + lane / 4, half * 4 + lane % 4,
                  own.contests[half * 2 + r].opened(half));
    __syncthreads();
    const auto place = static_cast<int>(threadIdx.x);
    if (place < kGroupRows && first + place < count) {
      if constexpr (goal == GroupScan::kSegments) {
        const Contests of_segments(state.segment_contests, state.task.tokens, segments);
        of_segments.put(first + place, segment, table.of_row(place));
      } else {
        close_row<scan>(state, table, place, list.row(first + place), list.entry(first + place));
      }
    }
    __syncthreads();  // before stages reuse the table
  }
}

template <Scan scan, GroupScan goal>
__global__ void __launch_bounds__(kGroupThreads, 2)
    scan_groups(SearchState state, GroupPlan plan, RowList list) {
  if constexpr (kHasGroupProducts) scan_by_groups<scan, goal>(state, plan, list);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
