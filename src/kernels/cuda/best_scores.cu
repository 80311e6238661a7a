#include "kernels/cuda/best_scores.h"

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;  // upper limit
constexpr int kWarps = kThreads / kWarp;

__device__ double infinity() { return static_cast<double>(INFINITY); }

/// The score that nearest_code gives to code i of a row.
template <typename T>
__device__ double exact_score(const CodeScores<T>& codes, int64_t row, int64_t i) {
  if (codes.excluded[i]) return infinity();
  const T *x = codes.x + row * codes.dim, *code = codes.codes + i * codes.dim;
  double score = 0;
  for (int64_t d = 0; d < codes.dim; ++d) {
    const double c = code[d], product = static_cast<double>(x[d]) * c;
    score += codes.cosine ? -product : c * c * 0.5 - product;
  }
  if (codes.bias != nullptr) score += codes.bias[i];
  return isnan(score) ? infinity() : score;
}

/// The score that residual_beam_search gives to extension i (path and code) of a row.
template <typename T>
__device__ double exact_score(const BeamPaths<T>& paths, int64_t row, int64_t i) {
  const int64_t path = row * paths.width + i / paths.size, k = i % paths.size;
  if (paths.excluded[k]) return infinity();
  const T *left = paths.left + path * paths.dim, *code = paths.codes + k * paths.dim;
  double score = 0;
  for (int64_t d = 0; d < paths.dim; ++d) {
    const double difference = static_cast<double>(left[d]) - static_cast<double>(code[d]);
    score += difference * difference;
  }
  if (paths.adds) score = paths.score[path] + score * paths.weight;
  return isfinite(score) ? score : infinity();
}

struct Scored {
  double score;
  int64_t place;
};
__device__ bool better(const Scored& a, const Scored& b) {
  return a.score < b.score || (a.score == b.score && a.place < b.place);
}

/// Returns the best of the block to every thread.
__device__ Scored best_of_block(Scored own) {
  __shared__ double scores[kWarps];
  __shared__ int64_t places[kWarps];
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Scored other = {__shfl_xor_sync(kWholeWarp, own.score, step),
                          __shfl_xor_sync(kWholeWarp, own.place, step)};
    if (better(other, own)) own = other;
  }
  if (lane_of_warp() == 0) scores[warp_of_block()] = own.score, places[warp_of_block()] = own.place;
  __syncthreads();
  own = {scores[0], places[0]};
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
    const Scored other = {scores[warp], places[warp]};
    if (better(other, own)) own = other;
  }
  __syncthreads();  // the arrays are used again
  return own;
}

/// One block per row. Scores are never NaN once replaced, so there is always a next best.
template <typename Scores>
__global__ void __launch_bounds__(kThreads, 2) choose_best(BestScoresTask task, Scores exact) {
  for (int64_t row = blockIdx.x; row < task.rows; row += gridDim.x) {
    double* scores = task.scores + row * task.count;
    const double limit = task.limits[row];
    for (int64_t i = threadIdx.x; i < task.count; i += blockDim.x) {
      const bool out = scores[i] > limit;
      if (out || task.fault != BestScoresFault::kTrustScreening)
        scores[i] = out ? infinity() : exact_score(exact, row, i);
    }
    Scored last = {-infinity(), -1};
    for (int64_t place = 0; place < task.best; ++place) {
      Scored next = {infinity(), task.count};
      // Each thread rereads only what it wrote itself, so no barrier is needed.
      for (int64_t i = threadIdx.x; i < task.count; i += blockDim.x) {
        const Scored one = {scores[i], i};
        if (better(last, one) && better(one, next)) next = one;
      }
      last = best_of_block(next);
      if (threadIdx.x == 0) task.chosen[row * task.best + place] = last.place;
    }
  }
}

/// One warp per chosen extension: finds its rank among those of the row, and
/// writes the resulting path.
template <typename T>
__global__ void __launch_bounds__(kThreads) follow_paths(BestScoresTask task, BeamPaths<T> paths) {
  for (int64_t item = grid_warp(); item < task.rows * task.best; item += grid_warps()) {
    const int64_t row = item / task.best;
    const int64_t* chosen = task.chosen + row * task.best;
    const int64_t own = task.chosen[item];
    int before = 0;
    for (int64_t i = lane_of_warp(); i < task.best; i += kWarp) before += chosen[i] < own;
    const int64_t to = row * task.best + sum_of_warp(before);
    const int64_t path = row * paths.width + own / paths.size, k = own % paths.size;
    for (int64_t d = lane_of_warp(); d < paths.dim; d += kWarp)
      paths.next_left[to * paths.dim + d] =
          paths.left[path * paths.dim + d] - paths.codes[k * paths.dim + d];
    for (int64_t n = lane_of_warp(); n < paths.level; n += kWarp)
      paths.next_indices[to * (paths.level + 1) + n] = paths.indices[path * paths.level + n];
    if (lane_of_warp() != 0) continue;
    paths.next_indices[to * (paths.level + 1) + paths.level] = k;
    paths.next_score[to] = task.scores[row * task.count + own];
  }
}

template <typename Scores>
Error choose(const BestScoresTask& task, const Scores& scores, const Queue& queue) {
  if (task.rows * task.best == 0) return nullptr;
  // About four scores per thread.
  const unsigned warps = blocks_for(task.count, 4 * kWarp, kWarps);
  return launch(choose_best<Scores>, queue, blocks_for(task.rows, 1), warps * kWarp, 0, task,
                scores);
}

template <typename T>
Error extend(const BestScoresTask& task, const BeamPaths<T>& paths, const Queue& queue) {
  if (const auto error = choose(task, paths, queue)) return error;
  if (task.rows * task.best == 0) return nullptr;
  return launch(follow_paths<T>, queue, blocks_for(task.rows * task.best, kWarps), kThreads, 0,
                task, paths);
}

}  // namespace

Error nearest_codes(const BestScoresTask& task, const CodeScores<float>& codes,
                    const Queue& queue) {
  return choose(task, codes, queue);
}

Error nearest_codes(const BestScoresTask& task, const CodeScores<double>& codes,
                    const Queue& queue) {
  return choose(task, codes, queue);
}

Error extend_paths(const BestScoresTask& task, const BeamPaths<float>& paths, const Queue& queue) {
  return extend(task, paths, queue);
}

Error extend_paths(const BestScoresTask& task, const BeamPaths<double>& paths, const Queue& queue) {
  return extend(task, paths, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
