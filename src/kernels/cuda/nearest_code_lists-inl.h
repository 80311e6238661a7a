// Data that the kernels of a search share in device memory: bounds, rounded rows and codes,
// and the lists of open rows.
#pragma once

#include "kernels/cuda/nearest_code.h"
#include "kernels/cuda/nearest_code_bound-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostRivals = 16;  // close codes of a row that are decided without another scan

// Subtracted from the products of what is not a screened code. Products are below kLargestNorm^2.
constexpr float kNoCode = 0x1p126f;

enum CodeStatus : uint8_t { kScreened = 0, kExcluded = 1, kSetAside = 2 };

using Word = unsigned long long;

/// One per search, initialised with zeros. Magnitudes are stored as the bits of
/// float64, which order alike.
struct SearchFacts {
  Word largest_norm, largest_loss, largest_split_loss, largest_offset;
  Word rivalries, open_in_half, open_in_float, open_in_double;  // lengths of the lists
  int set_aside;
  CodeBound bound;
};

struct CodeRange {
  int64_t begin, end;
};

/// A part of a codebook, of `parts` about equal ones.
__device__ inline CodeRange part_of_codes(int64_t size, int part, int parts) {
  return {size * part / parts, size * (part + 1) / parts};
}

/// All rows, or those of some rivalries.
struct RowList {
  const int64_t* entries = nullptr;    ///< null: all rows from 0 to count
  const int64_t* rivalries = nullptr;  ///< row of each rivalry
  const Word* length = nullptr;        ///< on the device; set if entries is
  int64_t count = 0;

  __device__ int64_t size() const { return entries ? static_cast<int64_t>(*length) : count; }
  /// The rivalry of a place of the list, -1 if it has none.
  __device__ int64_t entry(int64_t place) const { return entries ? entries[place] : -1; }
  __device__ int64_t row(int64_t place) const {
    return entries ? rivalries[entries[place]] : place;
  }
};

struct SearchState {
  NearestCodeTask<float> task;  ///< x and codebook are unit vectors for cosine
  SearchFacts* facts = nullptr;
  uint8_t* status = nullptr;    ///< (size,) CodeStatus
  float* center = nullptr;      ///< (dim,)
  float* half_norms = nullptr;  ///< (padded_size,): subtracted from products; kNoCode: not screened
  uint16_t* codes = nullptr;    ///< (padded_size, depth) half precision
  uint16_t* rows = nullptr;     ///< (padded_tokens, depth)
  float* units = nullptr;       ///< (padded_tokens,): value of one unit of a rounded product
  float* norms = nullptr;       ///< (tokens,): NaN: not finite; infinite: beyond the bound
  float* losses = nullptr;      ///< (tokens,): norms of rounding errors, as in RowNorms
  float* split_losses = nullptr;  ///< (tokens,)
  // Rows whose code is not certain: rivalries, and the numbers of those that still await a scan.
  int64_t* rivalries = nullptr;      ///< (tokens,): row
  int32_t* rivals = nullptr;         ///< (tokens, kMostRivals): codes, -1 is none
  int32_t* rival_counts = nullptr;   ///< (tokens,): kDecided, or more than kMostRivals: not these
  float* limits = nullptr;           ///< (tokens,): scores of rivals that are collected; null: none
  int64_t* open_in_half = nullptr;   ///< (tokens,): for the scan that collects rivals
  int64_t* open_in_float = nullptr;  ///< (tokens,): after half precision
  int64_t* open_in_double = nullptr;  ///< (tokens,): after float32
  void* segment_contests = nullptr;   ///< Contests of open_in_float, one lane per segment
  int64_t padded_size = 0, padded_tokens = 0, depth = 0;
  int64_t products = 0;  ///< instructions of tensor cores that add up a score
  int segments = 1;      ///< ranges of codes divided among blocks when few rows are left

  __device__ double bias_of(int64_t code) const {
    if (task.bias == nullptr) return 0;
    return static_cast<double>(task.bias[code]) * (task.cosine ? 1.0 : 0.5);
  }
};

constexpr int32_t kDecided = -1;

__device__ inline void append(int64_t* list, Word& length, int64_t entry) {
  list[atomicAdd(&length, Word{1})] = entry;
}

/// Adds a rivalry of a row, without rivals.
__device__ inline int64_t add_rivalry(const SearchState& state, int64_t row) {
  const auto entry = static_cast<int64_t>(atomicAdd(&state.facts->rivalries, Word{1}));
  state.rivalries[entry] = row;
  state.rival_counts[entry] = 0;
  return entry;
}

/// Best score, its code, and the second-best score among the codes that one
/// thread has scored for a row.
struct Contest {
  float best = -HUGE_VALF, second = -HUGE_VALF;
  int32_t code = 0;

  /// Codes come in order of index, so the first of equal scores stays; NaN never wins. Without branches,
  /// which cost more than what they skip.
  __device__ void take(float score, int32_t index) {
    second = fmaxf(second, fminf(best, score));
    code = score > best ? index : code;
    best = fmaxf(best, score);
  }
};

/// The contests of one thread for its rows: two in each fragment of 16. Not an array of two dimensions: nvcc 13.0 sets
/// all but the first line of one to zero, in spite of the initialisers of its members.
template <int fragments>
struct RowContests {
  Contest of[fragments * 2];

  __device__ Contest& at(int fragment, int half) { return of[fragment * 2 + half]; }
};

/// Contests of rows, [row][lane]: those of a block in shared memory, or of a list in global memory.
struct Contests {
  float *best, *second;
  int32_t* code;
  int lanes;

  __device__ Contests(void* memory, int64_t rows, int lanes_) : lanes(lanes_) {
    best = static_cast<float*>(memory);
    second = best + rows * (lanes + 1);
    code = reinterpret_cast<int32_t*>(second + rows * (lanes + 1));
  }
  __device__ int64_t place(int64_t row, int lane) const { return row * (lanes + 1) + lane; }
  __device__ void put(int64_t row, int lane, const Contest& contest) const {
    const int64_t at = place(row, lane);
    best[at] = contest.best;
    second[at] = contest.second;
    code[at] = contest.code;
  }
  /// Merges the lanes of a row; the second best is either second in a lane or best in another lane.
  __device__ Contest of_row(int64_t row) const {
    Contest joint;
    for (int64_t at = place(row, 0); at < place(row, lanes); ++at) {
      joint.take(best[at], code[at]);
      joint.second = fmaxf(joint.second, second[at]);
    }
    return joint;
  }
  static constexpr size_t bytes(int64_t rows, int lanes) {
    return static_cast<size_t>(rows) * (lanes + 1) * (2 * sizeof(float) + sizeof(int32_t));
  }
};

/// Conclusion from the contests of a row: the leading code, and which others may be the nearest.
struct Standing {
  int64_t winner;  ///< place of the leading contest
  double limit;    ///< codes with lower scores are not the nearest
  int rivals = 0;  ///< contests whose best reaches the limit, including the winner
  bool open;       ///< codes other than these may be the nearest

  __device__ Standing(const Contests& contests, int64_t row, double margin, SearchFault fault) {
    const int64_t first = contests.place(row, 0);
    winner = first;
    for (int lane = 1; lane < contests.lanes; ++lane)
      if (contests.best[first + lane] > contests.best[winner]) winner = first + lane;
    limit = contests.best[winner] - (fault == SearchFault::kNoBound ? 0 : margin);
    open = !decides();
    for (int lane = 0; lane < contests.lanes; ++lane) {
      rivals += contests.best[first + lane] >= limit;
      open |= contests.second[first + lane] >= limit && fault != SearchFault::kNoRunnerUp;
    }
  }
  /// With an infinite margin, or a codebook in which no code is screened, nothing is decided.
  __device__ bool decides() const { return limit > -kNoCode / 2 && limit < HUGE_VAL; }

  template <typename Take>
  __device__ void for_rivals(const Contests& contests, int64_t row, const Take& take) const {
    const int64_t first = contests.place(row, 0);
    for (int lane = 0; lane < contests.lanes; ++lane)
      if (contests.best[first + lane] >= limit) take(contests.code[first + lane]);
  }
};

/// Classifies a row: certain, a few rivals whose codes are known, or open. entry: its rivalry, -1 if it has none.
template <Scan scan>
__device__ inline void close_row(const SearchState& state, const Contests& contests, int64_t place,
                                 int64_t row, int64_t entry) {
  const double norm = state.norms[row];
  if (isnan(norm)) {
    state.task.indices[row] = -1;
    return;
  }
  SearchFacts& facts = *state.facts;
  RowNorms norms = {norm};
  if constexpr (scan != Scan::kFloat) norms.loss = state.losses[row];
  if constexpr (scan == Scan::kSplit) norms.split_loss = state.split_losses[row];
  const double margin = margin_of<scan>(facts.bound, norms);
  const Standing standing(contests, place, margin, state.task.fault);
  const bool certain = !standing.open && standing.rivals == 1;
  if (certain) {
    state.task.indices[row] = contests.code[standing.winner];
    if (entry >= 0) state.rival_counts[entry] = kDecided;
    return;
  }
  if (entry < 0) entry = add_rivalry(state, row);
  if (!standing.open && standing.rivals <= kMostRivals) {
    int32_t* to = state.rivals + entry * kMostRivals;
    int32_t count = 0;
    standing.for_rivals(contests, place, [&](int32_t code) { to[count++] = code; });
    state.rival_counts[entry] = count;
  } else if (scan == Scan::kFloat) {
    append(state.open_in_double, facts.open_in_double, entry);
  } else if (scan == Scan::kSplit || state.limits == nullptr || !standing.decides()) {
    append(state.open_in_float, facts.open_in_float, entry);
  } else {
    state.limits[entry] = -__double2float_ru(-standing.limit);  // rounds down
    append(state.open_in_half, facts.open_in_half, entry);
  }
}

/// Adds a rival to those of a row; the row stays open if it has too many.
__device__ inline void collect_rival(const SearchState& state, int64_t entry, int32_t code) {
  const int32_t before = atomicAdd(&state.rival_counts[entry], 1);
  if (before < kMostRivals) {
    state.rivals[entry * kMostRivals + before] = code;
  } else if (before == kMostRivals) {
    append(state.open_in_float, state.facts->open_in_float, entry);
  }
}

constexpr unsigned kCloseThreads = 256;

/// Completes the rows of a list whose codes were divided among blocks.
template <Scan scan>
__global__ void __launch_bounds__(kCloseThreads) close_segments(SearchState state, RowList list) {
  // Only scans by groups of four warps divide codes in half precision.
  if constexpr (scan != Scan::kFloat && !kHasGroupProducts) return;
  const Contests contests(state.segment_contests, state.task.tokens, state.segments);
  const int64_t count = list.size();
  for (int64_t place = grid_thread(); place < count; place += grid_threads())
    close_row<scan>(state, contests, place, list.row(place), list.entry(place));
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
