// One warp per row of scores, which it reads once for the best score, then once for each draw.
#include "kernels/cuda/sample_codes.h"

#include "kernels/cuda/cuda.h"
#include "kernels/random.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kThreads = 256;

/// The largest of a warp's values, or NaN if any is NaN.
__device__ double best_of_warp(double value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(kWholeWarp, value, step);
    if (other > value || isnan(other)) value = other;
  }
  return value;
}

/// A code's weight in the draw: the largest wins, ties by index.
struct Chance {
  double chance;
  int64_t code;

  __device__ bool before(const Chance& other) const {
    return chance > other.chance || (chance == other.chance && code < other.code);
  }
};

__device__ Chance best_of_warp(Chance own) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Chance other = {__shfl_xor_sync(kWholeWarp, own.chance, step),
                          __shfl_xor_sync(kWholeWarp, own.code, step)};
    if (other.before(own)) own = other;
  }
  return own;
}

__device__ double chance_of(const SampleCodesTask& task, double lag, uint64_t key,
                            uint64_t position) {
  const double waiting = -log_of_uniform(uniform_from_bits(random_bits(key, position), 53));
  const double quotient = lag / task.temperature;
  return quotient >= task.far ? exp(quotient) / waiting : quotient - log(waiting);
}

__global__ void __launch_bounds__(kThreads) draw_codes(SampleCodesTask task) {
  const uint64_t key = random_key(static_cast<uint64_t>(task.rng[0]),
                                  static_cast<uint64_t>(task.rng[1]), task.purpose, task.stream);
  for (int64_t row = grid_warp(); row < task.rows; row += grid_warps()) {
    const double* scores = task.scores + row * task.size;
    double best = -INFINITY;
    for (int64_t k = lane_of_warp(); k < task.size; k += kWarp) {
      if (scores[k] > best || isnan(scores[k])) best = scores[k];
    }
    best = best_of_warp(best);
    Chance last = {INFINITY, -1};
    for (int64_t place = 0; place < task.count; ++place) {
      Chance drawn = {-INFINITY, task.size};
      for (int64_t k = lane_of_warp(); isfinite(best) && k < task.size; k += kWarp) {
        const auto position = task.position + static_cast<uint64_t>(row * task.size + k);
        const Chance own = {chance_of(task, scores[k] - best, key, position), k};
        if (last.before(own) && own.before(drawn)) drawn = own;
      }
      last = best_of_warp(drawn);
      if (lane_of_warp() == 0) {
        task.indices[row * task.count + place] = isfinite(best) ? last.code : place;
      }
    }
  }
}

}  // namespace

Error sample_codes(const SampleCodesTask& task, const Queue& queue) {
  if (task.rows == 0) return nullptr;
  return launch(draw_codes, queue, blocks_for(task.rows, kThreads / kWarp), kThreads, 0, task);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
