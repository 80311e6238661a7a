// Finds the rows with the smallest distinct keys, for dead_codes.cu. Keys are those of
// detail/row_keys.cpp; rows with equal keys are one candidate, represented by the first of them.
#pragma once

#include <climits>

#include "kernels/cuda/code_totals-inl.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dead_codes.h"
#include "kernels/cuda/steps-inl.h"
#include "kernels/hash_word.h"
#include "kernels/random.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kCandidateThreads = 256;
using Word = unsigned long long;  // the type that atomics support

// Keys are int64, the largest of which means "none". With the sign bit flipped they order like
// unsigned numbers, and "none" is all ones, which marks an empty slot.
constexpr uint64_t kSign = uint64_t{1} << 63;
constexpr uint64_t kEmpty = ~uint64_t{0};
// The table numbers rows from 1; 0 marks a key that belongs to a live code.
constexpr uint64_t kLiveCode = 0;

template <typename X>
struct RowOf {
  using Type = float;
};
template <>
struct RowOf<double> {
  using Type = double;
};

__device__ int64_t wanted_of(const CandidateTask& task, int64_t head) {
  return task.wanted == nullptr ? task.most : task.wanted[head];
}

/// The leading bits of a key. Half of the bins are for negative keys, which rows do not have.
__device__ int64_t bin_of(uint64_t key) { return static_cast<int64_t>(key >> 52); }

/// Counters of a head: keys per bin; keys before each bin, and in all; listed keys per bin; and the
/// number of listed keys in all.
struct Bins {
  int64_t *counts, *before, *filled, *listed;
  __device__ Bins(const CandidateTask& task, int64_t head) {
    counts = task.bins + head * kCandidateBinWords;
    before = counts + kCandidateBins;
    filled = before + kCandidateBins + 1;
    listed = filled + kCandidateBins;
  }
};

__global__ void __launch_bounds__(kCandidateThreads) clear_table(Tasks<CandidateTask> tasks) {
  const CandidateTask& task = tasks.of[blockIdx.y];
  const int64_t words = task.slots + kCandidateBinWords;
  for (int64_t i = grid_thread(); i < task.heads * words; i += grid_threads()) {
    const int64_t head = i / words, at = i % words;
    if (wanted_of(task, head) == 0) continue;
    if (at < task.slots) {
      task.table_keys[head * task.slots + at] = kEmpty;
      task.table_rows[head * task.slots + at] = kEmpty;
    } else {
      task.bins[head * kCandidateBinWords + at - task.slots] = 0;
    }
  }
}

/// Keeps the first of the rows with equal keys. Live codes are inserted by an earlier launch, so a
/// key that takes an empty slot belongs to a candidate.
__device__ void insert(const CandidateTask& task, int64_t head, uint64_t key, uint64_t row) {
  if (key == kEmpty) return;
  const uint64_t last = static_cast<uint64_t>(task.slots) - 1;
  for (uint64_t slot = mix_bits(key) & last;; slot = (slot + 1) & last) {
    const int64_t at = head * task.slots + static_cast<int64_t>(slot);
    const Word before = atomicCAS(reinterpret_cast<Word*>(task.table_keys + at), Word{kEmpty},
                                  static_cast<Word>(key));
    if (before != kEmpty && before != key) continue;
    atomicMin(reinterpret_cast<Word*>(task.table_rows + at), static_cast<Word>(row));
    if (before == kEmpty && row != kLiveCode) {
      const Bins bins(task, head);
      atomicAdd(reinterpret_cast<Word*>(bins.counts + bin_of(key)), Word{1});
    }
    return;
  }
}

/// A row with the values it would have as a code, read by a warp. T is double for
/// double, otherwise float.
template <typename X>
struct CandidateRow {
  using T = typename RowOf<X>::Type;
  const X* x;
  double norm = 0;  // 0: the row is not normalized

  __device__ CandidateRow(const X* row, int64_t dim, bool unit) : x(row) {
    if (!unit) return;
    double squares = 0;  // in index order, by one lane
    for (int64_t d = 0; lane_of_warp() == 0 && d < dim; ++d) {
      const double value = to_float(x[d]);
      squares += value * value;
    }
    squares = __shfl_sync(kWholeWarp, squares, 0);
    norm = squares > 0 ? square_root(squares) : 0;
  }
  __device__ T operator[](int64_t d) const {
    const T value = to_float(x[d]);
    return norm > 0 ? static_cast<T>(static_cast<double>(value) / norm) : value;
  }
};

__device__ uint64_t hash_key(const CandidateTask& task, uint64_t stream = 0) {
  return random_key(static_cast<uint64_t>(task.rng[0]), static_cast<uint64_t>(task.rng[1]),
                    task.purpose, stream);
}

/// Returns to every lane the key that row_keys() gives to a row of a head with elements value(d).
template <typename Value>
__device__ uint64_t key_of_row(const Value& value, int64_t dim, uint64_t hash, int64_t head) {
  uint64_t sum = 0;
  for (int64_t d = lane_of_warp(); d < dim; d += kWarp) {
    const auto element = value(d);
    const uint64_t multiplier = random_bits(hash, static_cast<uint64_t>(d)) | 1;
    if (element != 0) sum += hash_word(element) * multiplier;
  }
  sum = sum_of_warp(sum);
  const uint64_t salt = random_bits(hash, ~static_cast<uint64_t>(head));
  return mix_bits(sum + salt) >> 1 | kSign;
}

/// One warp per row without a key.
template <typename X>
__global__ void __launch_bounds__(kCandidateThreads, 2) add_rows(Tasks<CandidateTask> tasks) {
  const CandidateTask& task = tasks.of[blockIdx.y];
  const X* x = static_cast<const X*>(task.x);
  const uint64_t hash = hash_key(task);
  for (int64_t row = grid_warp(); row < task.heads * task.rows; row += grid_warps()) {
    const int64_t head = row / task.rows;
    if (wanted_of(task, head) == 0 || (task.mask != nullptr && !task.mask[row])) continue;
    const CandidateRow<X> values(x + row * task.dim, task.dim, task.unit);
    bool finite = true, zero = true;
    for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp) {
      finite = finite && isfinite(values[d]);
      zero = zero && values[d] == 0;
    }
    const bool usable = __all_sync(kWholeWarp, finite) != 0;
    const bool nothing = __all_sync(kWholeWarp, zero) != 0;
    if (!usable || (task.unit && nothing)) continue;
    const auto value = [&](int64_t d) { return values[d]; };
    const uint64_t key = key_of_row(value, task.dim, hash, head);
    if (lane_of_warp() == 0)
      insert(task, head, key, static_cast<uint64_t>(row - head * task.rows) + 1);
  }
}

/// One thread per row with a key.
__global__ void __launch_bounds__(kCandidateThreads) add_keys(Tasks<CandidateTask> tasks) {
  const CandidateTask& task = tasks.of[blockIdx.y];
  for (int64_t row = grid_thread(); row < task.heads * task.rows; row += grid_threads()) {
    const int64_t head = row / task.rows;
    if (wanted_of(task, head) == 0) continue;
    insert(task, head, static_cast<uint64_t>(task.keys[row]) ^ kSign,
           static_cast<uint64_t>(row - head * task.rows) + 1);
  }
}

/// Exclusive prefix sum over the threads of a block.
__device__ int64_t sum_before(int64_t value) {
  __shared__ int64_t of_warps[kSizeThreads / kWarp];
  int64_t sum = value;
  for (int step = 1; step < kWarp; step *= 2) {
    const int64_t other = __shfl_up_sync(kWholeWarp, sum, step);
    if (lane_of_warp() >= step) sum += other;
  }
  if (lane_of_warp() == kWarp - 1) of_warps[warp_of_block()] = sum;
  __syncthreads();
  for (int warp = 0; warp < warp_of_block(); ++warp) sum += of_warps[warp];
  __syncthreads();  // before the array is reused
  return sum - value;
}

/// One block per head: the number of candidates found, and where the keys of each bin begin.
__global__ void __launch_bounds__(kSizeThreads, 1) place_bins(Tasks<CandidateTask> tasks) {
  const CandidateTask& task = tasks.of[blockIdx.y];
  constexpr int64_t kEach = kCandidateBins / kSizeThreads;
  for (int64_t head = blockIdx.x; head < task.heads; head += gridDim.x) {
    const int64_t wanted = wanted_of(task, head);
    if (wanted == 0) {
      if (threadIdx.x == 0) task.found[head] = 0;
      continue;
    }
    const Bins bins(task, head);
    const int64_t first = threadIdx.x * kEach;
    int64_t own = 0;
    for (int64_t bin = first; bin < first + kEach; ++bin) own += bins.counts[bin];
    int64_t before = sum_before(own);
    for (int64_t bin = first; bin < first + kEach; ++bin) {
      bins.before[bin] = before;
      before += bins.counts[bin];
      // The bin in which the wanted number is reached is the last one listed.
      if (bins.before[bin] < wanted && before >= wanted) *bins.listed = before;
    }
    if (threadIdx.x != kSizeThreads - 1) continue;
    bins.before[kCandidateBins] = before;
    task.found[head] = before < wanted ? before : wanted;
    if (before < wanted) *bins.listed = before;
  }
}

/// One thread per slot of the table: lists the keys of the bins with the smallest keys, bin by bin.
__global__ void __launch_bounds__(kCandidateThreads) list_keys(Tasks<CandidateTask> tasks) {
  const CandidateTask& task = tasks.of[blockIdx.y];
  for (int64_t slot = grid_thread(); slot < task.heads * task.slots; slot += grid_threads()) {
    const int64_t head = slot / task.slots;
    if (wanted_of(task, head) == 0 || task.found[head] == 0) continue;
    const uint64_t key = task.table_keys[slot], row = task.table_rows[slot];
    if (key == kEmpty || row == kLiveCode) continue;
    const Bins bins(task, head);
    const int64_t bin = bin_of(key);
    if (bins.before[bin] >= task.found[head]) continue;
    const Word place = atomicAdd(reinterpret_cast<Word*>(bins.filled + bin), Word{1});
    const int64_t at = head * task.rows + bins.before[bin] + static_cast<int64_t>(place);
    task.listed_keys[at] = key;
    task.listed_rows[at] = row - 1;
  }
}

/// One thread per listed key: its rank among the keys. `sorted` (heads, most) of a single task, or
/// null, receives the keys by rank.
__global__ void __launch_bounds__(kCandidateThreads)
    order_keys(Tasks<CandidateTask> tasks, int64_t* sorted) {
  const CandidateTask& task = tasks.of[blockIdx.y];
  for (int64_t item = grid_thread(); item < task.heads * task.rows; item += grid_threads()) {
    const int64_t head = item / task.rows, first = head * task.rows;
    if (wanted_of(task, head) == 0) continue;
    const Bins bins(task, head);
    if (item - first >= *bins.listed) continue;
    const uint64_t key = task.listed_keys[item];
    const int64_t bin = bin_of(key);
    int64_t place = bins.before[bin];
    for (int64_t other = place; other < bins.before[bin + 1]; ++other)
      place += task.listed_keys[first + other] < key;
    if (place >= task.found[head]) continue;
    task.chosen[head * task.most + place] = static_cast<int64_t>(task.listed_rows[item]);
    if (sorted != nullptr) sorted[head * task.most + place] = static_cast<int64_t>(key ^ kSign);
  }
}

using Candidates = Tasks<CandidateTask>;

/// Blocks of `threads` for the largest size(task), in each task.
template <typename Task, typename Size>
Grid grid_of(const Tasks<Task>& tasks, unsigned threads, const Size& size) {
  return {blocks_for(tasks.most(size), threads), tasks.count};
}

inline int64_t candidate_rows(const CandidateTask& task) { return task.heads * task.rows; }

inline void clear(const Candidates& tasks, Steps& steps) {
  const auto words = [](const CandidateTask& task) {
    return task.heads * (task.slots + kCandidateBinWords);
  };
  steps.run(clear_table, grid_of(tasks, kCandidateThreads, words), kCandidateThreads, 0, tasks);
}

/// Enters the rows into the cleared table.
template <typename X>
void fill(const Candidates& tasks, Steps& steps) {
  if (tasks.most(candidate_rows) == 0) return;
  if (tasks.of[0].keys != nullptr) {
    const Grid grid = grid_of(tasks, kCandidateThreads, candidate_rows);
    steps.run(add_keys, grid, kCandidateThreads, 0, tasks);
  } else {
    const Grid grid = grid_of(tasks, kCandidateThreads / kWarp, candidate_rows);
    steps.run(add_rows<X>, grid, kCandidateThreads, 0, tasks);
  }
}

/// Chooses the rows from the filled table.
inline void choose(const Candidates& tasks, int64_t* sorted, Steps& steps) {
  const auto heads = [](const CandidateTask& task) { return task.heads; };
  steps.run(place_bins, grid_of(tasks, 1, heads), kSizeThreads, 0, tasks);
  if (tasks.most(candidate_rows) == 0) return;
  const auto slots = [](const CandidateTask& task) { return task.heads * task.slots; };
  steps.run(list_keys, grid_of(tasks, kCandidateThreads, slots), kCandidateThreads, 0, tasks);
  steps.run(order_keys, grid_of(tasks, kCandidateThreads, candidate_rows), kCandidateThreads, 0,
            tasks, sorted);
}

}  // namespace
}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
