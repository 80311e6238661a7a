// Exact scores by the contract, in float64 over dimensions in index order, ties by index: of known
// codes, and of all codes for some rows of a block.
#pragma once

#include "kernels/cuda/nearest_code_lists-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kExactThreads = 256;
// Rows per block, for each of which a code is read once: more for lists, which may be long.
constexpr int kExactRows = 4, kExactListRows = 16;
constexpr int kExactDepth = 16;  // dimensions per round

/// Half the square of a number of a code, of which only euclidean scores have a part.
__device__ inline double half_square(double c, bool cosine) { return cosine ? 0.0 : c * c * 0.5; }

/// Adds one dimension to a score.
__device__ inline double add_to_score(double score, double x, double c, double half, bool cosine) {
  return score + (cosine ? -(x * c) : half - x * c);
}

/// The lowest score and its code, ties by index; a score of infinity and
/// index -1 stand for no code.
struct Verdict {
  double score = HUGE_VAL;
  int32_t code = -1;

  __device__ void take(double other_score, int32_t other) {
    const bool wins =
        other >= 0 && (code < 0 || other_score < score || (other_score == score && other < code));
    if (wins) score = other_score, code = other;
  }
  /// Reduces over `lanes` adjacent lanes, a power of two; all of them get the result.
  __device__ void merge(int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
      const double other_score = __shfl_xor_sync(kWholeWarp, score, step);
      const int32_t other = __shfl_xor_sync(kWholeWarp, code, step);
      take(other_score, other);
    }
  }
};

/// The score of one code without its bias. Row: an array, or anything indexed like one.
template <typename Row>
__device__ inline double score_of(const Row& row, const float* code, int64_t dim, bool cosine) {
  double score = 0;
#pragma unroll 16
  for (int64_t d = 0; d < dim; ++d) {
    const double c = code[d];
    score = add_to_score(score, row[d], c, half_square(c, cosine), cosine);
  }
  return score;
}

/// The best verdict of the block, valid in thread 0. All threads must call it.
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

template <typename T, int rows>
constexpr size_t exact_shared() {
  return sizeof(T) * (kExactThreads * (kExactDepth + 1) + rows * kExactDepth) +
         sizeof(Verdict) * (kExactThreads / kWarp);
}
static_assert(exact_shared<double, kExactRows>() <= 48 * 1024);

/// NaN (inf - inf after an overflow) and the scores of codes that are not finite count as the worst.
__device__ inline double ranked(double score, uint8_t status) {
  return status == kExcluded || isnan(score) ? HUGE_VAL : score;
}

/// Finds the nearest code of a range for `rows` rows, at most `most`, by a block of kExactThreads
/// with exact_shared<T, most>() bytes. value(row, d) reads a row; thread 0 calls take(row, verdict).
template <int most, typename T, typename Value, typename Take>
__device__ inline void decide_rows(const NearestCodeTask<T>& task, const uint8_t* status,
                                   const CodeRange& range, int rows, void* shared,
                                   const Value& value, const Take& take) {
  T* codes = static_cast<T*>(shared);                     // [kExactThreads][kExactDepth + 1]
  T* values = codes + kExactThreads * (kExactDepth + 1);  // [most][kExactDepth]
  auto* verdicts = reinterpret_cast<Verdict*>(values + most * kExactDepth);
  const auto thread = static_cast<int>(threadIdx.x);
  Verdict best[most];
  for (int64_t base = range.begin; base < range.end; base += kExactThreads) {
    double scores[most] = {};
    for (int64_t depth = 0; depth < task.dim; depth += kExactDepth) {
      const int here = static_cast<int>(min(task.dim - depth, static_cast<int64_t>(kExactDepth)));
      __syncthreads();  // before data still in use is overwritten
      for (int i = thread; i < kExactThreads * kExactDepth; i += kExactThreads) {
        const int line = i / kExactDepth, d = i % kExactDepth;
        if (base + line < range.end && d < here)
          codes[line * (kExactDepth + 1) + d] = task.codebook[(base + line) * task.dim + depth + d];
      }
      if (thread < most * kExactDepth) {  // at most one number of a thread
        const int line = thread / kExactDepth, d = thread % kExactDepth;
        if (line < rows && d < here) values[thread] = value(line, depth + d);
      }
      __syncthreads();
      if (base + thread >= range.end) continue;  // continues to the next barrier of the loop
      for (int d = 0; d < here; ++d) {
        const double c = codes[thread * (kExactDepth + 1) + d], half = half_square(c, task.cosine);
#pragma unroll
        for (int r = 0; r < most; ++r)
          if (r < rows)
            scores[r] = add_to_score(scores[r], values[r * kExactDepth + d], c, half, task.cosine);
      }
    }
    const int64_t code = base + thread;
    if (code >= range.end) continue;
    const double scale = task.cosine ? 1.0 : 0.5;
    const double bias = task.bias ? static_cast<double>(task.bias[code]) * scale : 0.0;
#pragma unroll
    for (int r = 0; r < most; ++r)
      best[r].take(ranked(scores[r] + bias, status[code]), static_cast<int32_t>(code));
  }
#pragma unroll
  for (int r = 0; r < most; ++r) {
    const Verdict verdict = verdict_of_block(best[r], verdicts);
    if (thread == 0 && r < rows) take(r, verdict);
  }
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
