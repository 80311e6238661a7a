// Final decision: exact scores by the contract, in float64 over dimensions in
// index order, ties by index.
#pragma once

#include "kernels/cuda/nearest_code_exact-inl.h"
#include "kernels/cuda/nearest_code_prepare-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr unsigned kRivalThreads = 128;

/// Whether all numbers of a row are finite; runs in one warp.
template <typename T>
__device__ inline bool is_finite_row(const NearestCodeTask<T>& task, int64_t row) {
  bool finite = true;
  for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp)
    finite = finite && isfinite(task.x[row * task.dim + d]);
  return __all_sync(kWholeWarp, finite);
}

/// Makes rivals of the nearest code of each of `parts` parts of the codebook, for the rows of a list, so that few rows
/// occupy many blocks.
template <int most>
__global__ void __launch_bounds__(kExactThreads, 2)
    list_exact_rivals(SearchState state, RowList list, int parts) {
  const int64_t count = list.size();
  const auto part = static_cast<int>(blockIdx.x % static_cast<unsigned>(parts));
  const int64_t step = static_cast<int64_t>(gridDim.x / parts) * most;
  for (int64_t first = static_cast<int64_t>(blockIdx.x / parts) * most; first < count;
       first += step) {
    const int rows = static_cast<int>(min(count - first, int64_t{most}));
    decide_rows<most>(
        state.task, state.status, part_of_codes(state.task.size, part, parts), rows,
        shared_memory<float>(),
        [&](int row, int64_t d) {
          return state.task.x[list.row(first + row) * state.task.dim + d];
        },
        [&](int row, const Verdict& verdict) {
          const int64_t entry = list.entries ? list.entry(first + row) : first + row;
          state.rivals[entry * kMostRivals + part] = verdict.code;
          if (list.entries && part == 0) state.rival_counts[entry] = parts;
        });
  }
}

/// Prepares a search that scores all codes for all rows: classifies codes, and makes a rivalry of each row.
__global__ void __launch_bounds__(kExactThreads) begin_exact_search(SearchState state, int parts) {
  const auto& task = state.task;
  for (int64_t at = grid_warp(); at < task.size + task.tokens; at += grid_warps()) {
    if (at < task.size) {
      classify_code(task, at, state.status, state.facts);
      continue;
    }
    const int64_t row = at - task.size;
    const bool finite = is_finite_row(task, row);
    if (lane_of_warp() != 0) continue;
    if (!finite) task.indices[row] = -1;
    state.rivalries[row] = row;
    state.rival_counts[row] = finite ? parts : kDecided;
  }
  if (grid_thread() == 0) state.facts->rivalries = static_cast<Word>(task.tokens);
}

/// Decides between known rivals; one thread per rival.
__global__ void __launch_bounds__(kRivalThreads) decide_rivals(SearchState state) {
  constexpr int kTogether = kWarp / kMostRivals;  // rows per warp
  const auto& task = state.task;
  const auto count = static_cast<int64_t>(state.facts->rivalries);
  const int own = lane_of_warp() % kMostRivals;
  for (int64_t first = grid_warp() * kTogether; first < count; first += grid_warps() * kTogether) {
    const int64_t entry = first + lane_of_warp() / kMostRivals;
    const int32_t rivals = entry < count ? state.rival_counts[entry] : kDecided;
    Verdict verdict;
    if (own < rivals && rivals <= kMostRivals) {
      const int64_t row = state.rivalries[entry];
      const int32_t code = state.rivals[entry * kMostRivals + own];
      if (code >= 0) {
        const float *x = task.x + row * task.dim, *c = task.codebook + code * task.dim;
        const double score = score_of(x, c, task.dim, task.cosine) + state.bias_of(code);
        verdict.take(ranked(score, state.status[code]), code);
      }
    }
    __syncwarp();
    verdict.merge(kMostRivals);
    if (own == 0 && rivals > 0) task.indices[state.rivalries[entry]] = verdict.code;
  }
}

/// Scores all codes for all rows, but those whose index is already -1.
template <typename T>
__global__ void __launch_bounds__(kExactThreads, 2)
    scan_exact(NearestCodeTask<T> task, const uint8_t* status) {
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kExactRows; first < task.tokens;
       first += static_cast<int64_t>(gridDim.x) * kExactRows) {
    const int rows = static_cast<int>(min(task.tokens - first, static_cast<int64_t>(kExactRows)));
    decide_rows<kExactRows>(
        task, status, {0, task.size}, rows, shared_memory<T>(),
        [&](int row, int64_t d) { return task.x[(first + row) * task.dim + d]; },
        [&](int row, const Verdict& verdict) {
          int64_t& index = task.indices[first + row];
          if (index != -1) index = verdict.code;
        });
  }
}

/// One warp per row: -1 if it is not finite, otherwise 0.
template <typename T>
__global__ void __launch_bounds__(kExactThreads) mark_rows(NearestCodeTask<T> task) {
  for (int64_t row = grid_warp(); row < task.tokens; row += grid_warps()) {
    const bool finite = is_finite_row(task, row);
    if (lane_of_warp() == 0) task.indices[row] = finite ? 0 : -1;
  }
}

/// The distance defined by the contract, summed in float64 in index order as on CPU.
template <typename T>
__device__ inline double distance_of(const T* x, const T* code, int64_t dim, bool cosine) {
  double sum = 0, x_square = 0, code_square = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double a = x[d], b = code[d];
    if (cosine) {
      sum += a * b;
      x_square += a * a;
      code_square += b * b;
    } else {
      sum += (a - b) * (a - b);
    }
  }
  if (!cosine) return sum;
  const double norms = sqrt(x_square) * sqrt(code_square);
  return norms == 0 ? 1.0 : 1.0 - sum / norms;
}

template <typename T>
__global__ void __launch_bounds__(kExactThreads) gather_codes(FoundCodes<T> found) {
  const auto& task = found.task;
  for (int64_t row = grid_warp(); row < task.tokens; row += grid_warps()) {
    const int64_t index = task.indices[row];
    const T* code = task.codebook + index * task.dim;
    T* to = found.codes + row * task.dim;
    for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp)
      to[d] = index < 0 ? static_cast<T>(NAN) : code[d];
    if (found.distances != nullptr) continue;  // finish_rows follows
    __syncwarp();
    if (lane_of_warp() == 0 && index < 0) task.indices[row] = 0;
  }
}

/// Computes distances and replaces indices of -1.
template <typename T>
__global__ void __launch_bounds__(kExactThreads) finish_rows(FoundCodes<T> found) {
  const auto& task = found.task;
  for (int64_t row = grid_thread(); row < task.tokens; row += grid_threads()) {
    const int64_t index = task.indices[row];
    if (index < 0) task.indices[row] = 0;
    if (found.distances == nullptr) continue;
    double distance = NAN;
    if (index >= 0) {
      distance = distance_of(task.x + row * task.dim, task.codebook + index * task.dim, task.dim,
                             task.cosine);
      distance += task.bias ? static_cast<double>(task.bias[index]) : 0.0;
    }
    found.distances[row] = static_cast<T>(distance);
  }
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
