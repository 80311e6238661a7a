// Final decision: exact scores by the contract, in float64 over dimensions in
// index order, ties by index.
#pragma once

#include "kernels/cuda/nearest_code_exact-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr unsigned kRivalThreads = 128;

/// Decides between known rivals; one thread per rival.
__global__ void __launch_bounds__(kRivalThreads) decide_rivals(SearchState state) {
  constexpr int kTogether = kWarp / kMostRivals;  // rows per warp
  const auto& task = state.task;
  const auto count = static_cast<int64_t>(state.facts->rivalries);
  for (int64_t first = grid_warp() * kTogether; first < count; first += grid_warps() * kTogether) {
    const int64_t entry = first + lane_of_warp() / kMostRivals;
    Verdict verdict;
    if (entry < count) {
      const int64_t row = state.rivalries[entry];
      const int32_t code = state.rivals[entry * kMostRivals + lane_of_warp() % kMostRivals];
      if (code >= 0) {
        const float *x = task.x + row * task.dim, *c = task.codebook + code * task.dim;
        verdict.take(score_of(x, c, task.dim, task.cosine) + state.bias_of(code), code);
      }
    }
    __syncwarp();
    verdict.merge(kMostRivals);
    if (entry < count && lane_of_warp() % kMostRivals == 0)
      task.indices[state.rivalries[entry]] = verdict.code;
  }
}

/// Scores all codes for the rows of a list; with `skip`, rows whose index is
/// already -1 are left alone.
template <typename T>
__global__ void __launch_bounds__(kExactThreads, 2)
    scan_exact(NearestCodeTask<T> task, const uint8_t* status, RowList list, bool skip) {
  const int64_t count = list.size();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kExactRows; first < count;
       first += static_cast<int64_t>(gridDim.x) * kExactRows) {
    const int rows = static_cast<int>(min(count - first, static_cast<int64_t>(kExactRows)));
    decide_rows(
        task, status, rows, shared_memory<T>(),
        [&](int row, int64_t d) { return task.x[list.row(first + row) * task.dim + d]; },
        [&](int row, const Verdict& verdict) {
          int64_t& index = task.indices[list.row(first + row)];
          if (!skip || index != -1) index = verdict.code;
        });
  }
}

/// One warp per row: -1 if it is not finite, otherwise 0.
template <typename T>
__global__ void __launch_bounds__(kExactThreads) mark_rows(NearestCodeTask<T> task) {
  for (int64_t row = grid_warp(); row < task.tokens; row += grid_warps()) {
    bool finite = true;
    for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp)
      finite = finite && isfinite(task.x[row * task.dim + d]);
    finite = __all_sync(kWholeWarp, finite);
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
  const int64_t count = task.tokens * task.dim;
  for (int64_t i = grid_thread(); i < count; i += grid_threads()) {
    const int64_t index = task.indices[i / task.dim];
    found.codes[i] =
        index < 0 ? static_cast<T>(NAN) : task.codebook[index * task.dim + i % task.dim];
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
