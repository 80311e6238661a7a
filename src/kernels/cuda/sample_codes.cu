// One warp per row of scores, which it reads twice: for the best score, then for the draw.
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
};

__device__ Chance best_of_warp(Chance own) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const double chance = __shfl_xor_sync(kWholeWarp, own.chance, step);
    const int64_t code = __shfl_xor_sync(kWholeWarp, own.code, step);
    if (chance > own.chance || (chance == own.chance && code < own.code)) own = {chance, code};
  }
  return own;
}

__device__ double chance_of(const SampleCodesTask& task, double lag, uint64_t key,
                            uint64_t position) {
  if (task.temperature == 0) return lag == 0 ? 1.0 : 0.0;
  const double chance = exp(lag / task.temperature);
  if (!(chance > 0)) return chance;
  return chance / -log_of_uniform(uniform_from_bits(random_bits(key, position), 53));
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
    Chance drawn = {-1.0, task.size};
    if (isfinite(best)) {
      for (int64_t k = lane_of_warp(); k < task.size; k += kWarp) {
        const auto position = task.position + static_cast<uint64_t>(row * task.size + k);
        const double chance = chance_of(task, scores[k] - best, key, position);
        if (chance > drawn.chance) drawn = {chance, k};
      }
    }
    drawn = best_of_warp(drawn);
    if (lane_of_warp() == 0) task.indices[row] = isfinite(best) ? drawn.code : 0;
  }
}

}  // namespace

Error sample_codes(const SampleCodesTask& task, const Queue& queue) {
  if (task.rows == 0) return nullptr;
  return launch(draw_codes, queue, blocks_for(task.rows, kThreads / kWarp), kThreads, 0, task);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
