// The last word: scores of the contract, float64 over dimensions in index order, ties by index.
#pragma once

#include "kernels/cuda/nearest_code_lists-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr unsigned kRivalThreads = 128;
constexpr int kExactThreads = 256;
constexpr int kExactRows = 4;    // of a block, each code's values are read once for all of them
constexpr int kExactDepth = 16;  // dimensions at a time

/// One more dimension of a score.
__device__ inline double add_to_score(double score, double x, double c, bool cosine) {
  return score + (cosine ? -(x * c) : c * c * 0.5 - x * c);
}

/// The lower score, at equal scores the lower index; no code is a score of infinity and index -1.
struct Verdict {
  double score = HUGE_VAL;
  int32_t code = -1;

  __device__ void take(double other_score, int32_t other) {
    const bool wins =
        other >= 0 && (code < 0 || other_score < score || (other_score == score && other < code));
    if (wins) score = other_score, code = other;
  }
  /// Of `lanes` neighbouring lanes, a power of two; all have it then.
  __device__ void merge(int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
      const double other_score = __shfl_xor_sync(kWholeWarp, score, step);
      const int32_t other = __shfl_xor_sync(kWholeWarp, code, step);
      take(other_score, other);
    }
  }
};

/// Close calls between codes that are known: one thread to a rival.
__global__ void __launch_bounds__(kRivalThreads) decide_rivals(SearchState state) {
  constexpr int kTogether = kWarp / kMostRivals;  // rows of a warp
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
        double score = 0;
        for (int64_t d = 0; d < task.dim; ++d) score = add_to_score(score, x[d], c[d], task.cosine);
        verdict.take(score + state.bias_of(code), code);
      }
    }
    __syncwarp();
    verdict.merge(kMostRivals);
    if (entry < count && lane_of_warp() % kMostRivals == 0)
      task.indices[state.rivalries[entry]] = verdict.code;
  }
}

/// The least of the block's verdicts; valid in thread 0. All threads call it.
__device__ inline Verdict verdict_of_block(Verdict verdict, Verdict* of_warps) {
  verdict.merge(kWarp);
  if (lane_of_warp() == 0) of_warps[warp_of_block()] = verdict;
  __syncthreads();
  Verdict least;
  for (int warp = 0; threadIdx.x == 0 && warp < kExactThreads / kWarp; ++warp)
    least.take(of_warps[warp].score, of_warps[warp].code);
  __syncthreads();
  return least;
}

/// All codes of some rows; of `skip`, rows whose index is -1 already are left so.
template <typename T>
__global__ void __launch_bounds__(kExactThreads, 2)
    scan_exact(NearestCodeTask<T> task, const uint8_t* status, RowList list, bool skip) {
  auto* codes = shared_memory<T>();                     // [kExactThreads][kExactDepth + 1]
  T* rows = codes + kExactThreads * (kExactDepth + 1);  // [kExactRows][kExactDepth]
  auto* verdicts = reinterpret_cast<Verdict*>(rows + kExactRows * kExactDepth);
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t count = list.size();

  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kExactRows; first < count;
       first += static_cast<int64_t>(gridDim.x) * kExactRows) {
    Verdict best[kExactRows];
    for (int64_t base = 0; base < task.size; base += kExactThreads) {
      double scores[kExactRows] = {};
      for (int64_t depth = 0; depth < task.dim; depth += kExactDepth) {
        const int here = static_cast<int>(min(task.dim - depth, static_cast<int64_t>(kExactDepth)));
        __syncthreads();  // nobody reads what is loaded over
        for (int i = thread; i < kExactThreads * kExactDepth; i += kExactThreads) {
          const int line = i / kExactDepth, d = i % kExactDepth;
          if (base + line < task.size && d < here)
            codes[line * (kExactDepth + 1) + d] =
                task.codebook[(base + line) * task.dim + depth + d];
        }
        if (thread < kExactRows * kExactDepth) {
          const int line = thread / kExactDepth, d = thread % kExactDepth;
          if (first + line < count && d < here)
            rows[thread] = task.x[list.row(first + line) * task.dim + depth + d];
        }
        __syncthreads();
        if (base + thread >= task.size) continue;  // to the next barrier of the loop
        for (int d = 0; d < here; ++d) {
          const double c = codes[thread * (kExactDepth + 1) + d];
#pragma unroll
          for (int r = 0; r < kExactRows; ++r)
            if (first + r < count)
              scores[r] = add_to_score(scores[r], rows[r * kExactDepth + d], c, task.cosine);
        }
      }
      const int64_t code = base + thread;
      if (code >= task.size) continue;
      const double scale = task.cosine ? 1.0 : 0.5;
      const double bias = task.bias ? static_cast<double>(task.bias[code]) * scale : 0.0;
#pragma unroll
      for (int r = 0; r < kExactRows; ++r) {
        const double score = scores[r] + bias;
        // A score that is no number, inf - inf in an overflow, counts as the worst.
        const bool worst = status[code] == kExcluded || isnan(score);
        best[r].take(worst ? HUGE_VAL : score, static_cast<int32_t>(code));
      }
    }
#pragma unroll
    for (int r = 0; r < kExactRows; ++r) {
      const Verdict verdict = verdict_of_block(best[r], verdicts);
      if (thread != 0 || first + r >= count) continue;
      int64_t& index = task.indices[list.row(first + r)];
      if (!skip || index != -1) index = verdict.code;
    }
  }
}

template <typename T>
constexpr size_t exact_shared() {
  return sizeof(T) * (kExactThreads * (kExactDepth + 1) + kExactRows * kExactDepth) +
         sizeof(Verdict) * (kExactThreads / kWarp);
}
static_assert(exact_shared<double>() <= 48 * 1024);

/// A warp to a row: -1 where it is not finite, 0 elsewhere.
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

/// The contract's distance, summed in float64 in index order as on the CPU.
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

/// Distances, and the end of -1.
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
