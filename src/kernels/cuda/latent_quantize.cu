#include "kernels/cuda/latent_quantize.h"

#include "kernels/cuda/scalar_place-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kSumThreads = 128;

/// The nearest level; the lowest one wins ties.
__device__ int nearest_level(const double* values, int count, double x) {
  int best = 0;
  double least = fabs(x - values[0]);
  for (int i = 1; i < count; ++i) {
    const double distance = fabs(x - values[i]);
    best = distance < least ? i : best;
    least = distance < least ? distance : least;
  }
  return best;
}

template <typename T>
__global__ void __launch_bounds__(kPlaceThreads, 4)
    quantize_latents(LatentLevels table, LatentQuantizeTask<T> task) {
  __shared__ int firsts[kMostFeatures], counts[kMostFeatures];
  __shared__ int levels[kPlaceThreads];  // -1: not finite
  __shared__ bool lost[kPlaceThreads];
  for (int j = threadIdx.x; j < table.features; j += kPlaceThreads) {
    firsts[j] = table.first[j];
    counts[j] = table.levels[j];
  }
  __syncthreads();
  const int features = table.features;
  const RowPlace place(features);
  for (int64_t first = place.begin(); first < task.tokens; first += place.step()) {
    const bool holds = place.holds(first, task.tokens);
    const int64_t at = first * features + threadIdx.x;
    const bool real = holds && (task.mask == nullptr || task.mask[first + place.row]);
    int level = -1;
    if (real) {
      const double value = task.x[at];
      if (is_finite(value)) {
        level = nearest_level(task.values + firsts[place.feature], counts[place.feature], value);
      }
    }
    levels[threadIdx.x] = level;
    __syncthreads();
    if (place.leads(first, task.tokens)) {
      const int64_t token = first + threadIdx.x;
      const int* own = levels + threadIdx.x * features;
      int64_t index = 0, basis = 1;
      bool absent = false;
      for (int j = 0; j < features; ++j) {
        absent |= own[j] < 0;
        index += own[j] * basis;
        basis *= counts[j];
      }
      lost[threadIdx.x] = absent;
      const bool masked = task.mask != nullptr && !task.mask[token];
      task.indices[token] = masked ? -1 : absent ? 0 : index;
    }
    __syncthreads();
    if (holds) {
      T code = 0;
      if (real && lost[place.row]) code = static_cast<T>(NAN);
      if (real && !lost[place.row]) {
        code = static_cast<T>(task.values[firsts[place.feature] + level]);
      }
      task.codes[at] = code;
    }
  }
}

/// One block per kLatentsPerBlock tokens: each thread sums over features of its own tokens, then
/// the first one adds the tokens, in order. Masked tokens add 0, which leaves a sum of squares
/// unchanged.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    sum_squares(int features, LatentQuantizeTask<T> task) {
  __shared__ double squares[kLatentsPerBlock];
  const int64_t begin = blockIdx.x * kLatentsPerBlock;
  const int64_t left = task.tokens - begin;
  const int tokens = static_cast<int>(left < kLatentsPerBlock ? left : kLatentsPerBlock);
  for (int i = threadIdx.x; i < tokens; i += kSumThreads) {
    double own = 0;
    for (int j = 0; j < features; ++j) {
      const int64_t at = (begin + i) * features + j;
      const double rest = static_cast<double>(task.x[at]) - static_cast<double>(task.codes[at]);
      own += rest * rest;
    }
    squares[i] = task.indices[begin + i] < 0 ? 0.0 : own;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  int64_t real = 0;
  for (int i = 0; i < tokens; ++i) {
    sum += squares[i];
    real += task.indices[begin + i] < 0 ? 0 : 1;
  }
  task.squares[blockIdx.x] = sum;
  task.real[blockIdx.x] = real;
}

template <typename T>
__global__ void write_loss(int features, int64_t blocks, LatentQuantizeTask<T> task) {
  double sum = 0;
  int64_t real = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    sum += task.squares[block];
    real += task.real[block];
  }
  const int64_t number = real * features;
  *task.loss = static_cast<T>(sum / static_cast<double>(number < 1 ? 1 : number) * task.weight);
}

/// Factor of twice the gradient of the loss in backward.
template <typename T>
__device__ double loss_scale(int features, const LatentBackwardTask<T>& task) {
  const int64_t number = *task.real * features;
  return *task.grad_loss * 2 / static_cast<double>(number < 1 ? 1 : number);
}

template <typename T>
__device__ double rest_of(const LatentBackwardTask<T>& task, int64_t at) {
  return static_cast<double>(task.x[at]) - static_cast<double>(task.codes[at]);
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    gradients_of_latents(int features, LatentBackwardTask<T> task) {
  const double to_x = loss_scale(features, task) * task.commitment;
  const int64_t values = task.tokens * features;
  for (int64_t at = grid_thread(); at < values; at += grid_threads()) {
    const double moved = static_cast<double>(task.straight[at]) + to_x * rest_of(task, at);
    task.grad_x[at] = task.indices[at / features] < 0 ? T(0) : static_cast<T>(moved);
  }
}

/// One block per kLatentsPerBlock tokens: feature by feature, each thread adds up its own
/// levels, in the order of tokens.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    sums_of_values(LatentLevels table, LatentBackwardTask<T> task) {
  __shared__ int digits[kLatentsPerBlock];  // -1: no contribution
  __shared__ double rests[kLatentsPerBlock];
  const int features = table.features;
  const int64_t begin = blockIdx.x * kLatentsPerBlock;
  const int64_t left = task.tokens - begin;
  const int tokens = static_cast<int>(left < kLatentsPerBlock ? left : kLatentsPerBlock);
  double* sums = task.sums + blockIdx.x * task.value_count;
  int64_t basis = 1;
  for (int j = 0; j < features; ++j) {
    const int count = table.levels[j];
    for (int i = threadIdx.x; i < tokens; i += kSumThreads) {
      const int64_t index = task.indices[begin + i];
      const double rest = rest_of(task, (begin + i) * features + j);
      const bool adds = index >= 0 && is_finite(rest);
      digits[i] = adds ? static_cast<int>(index / basis % count) : -1;
      rests[i] = rest;
    }
    __syncthreads();
    for (int level = threadIdx.x; level < count; level += kSumThreads) {
      double sum = 0;
      for (int i = 0; i < tokens; ++i) {
        if (digits[i] == level) sum += rests[i];
      }
      sums[table.first[j] + level] = sum;
    }
    __syncthreads();
    basis *= count;
  }
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    gradients_of_values(int features, int64_t blocks, LatentBackwardTask<T> task) {
  const double to_values = loss_scale(features, task) * -task.quantization;
  for (int64_t v = grid_thread(); v < task.value_count; v += grid_threads()) {
    double total = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      total += task.sums[block * task.value_count + v];
    }
    task.grad_values[v] = static_cast<T>(total * to_values);
  }
}

unsigned blocks_of(int64_t tokens) {
  return static_cast<unsigned>((tokens + kLatentsPerBlock - 1) / kLatentsPerBlock);
}

template <typename T>
Error run_latents(const LatentLevels& levels, const LatentQuantizeTask<T>& task,
                  const Queue& queue) {
  const unsigned blocks = blocks_of(task.tokens);
  if (blocks > 0) {
    const auto quantized =
        launch(quantize_latents<T>, queue, tiles_for(task.tokens, levels.features), kPlaceThreads,
               0, levels, task);
    if (quantized) return quantized;
    const auto summed =
        launch(sum_squares<T>, queue, blocks, kSumThreads, 0, levels.features, task);
    if (summed) return summed;
  }
  return launch(write_loss<T>, queue, 1, 1, 0, levels.features, blocks, task);
}

template <typename T>
Error run_backward(const LatentLevels& levels, const LatentBackwardTask<T>& task,
                   const Queue& queue) {
  const unsigned blocks = blocks_of(task.tokens);
  if (blocks > 0) {
    const auto moved = launch(gradients_of_latents<T>, queue,
                              blocks_for(task.tokens * levels.features, kSumThreads), kSumThreads,
                              0, levels.features, task);
    if (moved) return moved;
    const auto summed = launch(sums_of_values<T>, queue, blocks, kSumThreads, 0, levels, task);
    if (summed) return summed;
  }
  return launch(gradients_of_values<T>, queue, blocks_for(task.value_count, kSumThreads),
                kSumThreads, 0, levels.features, blocks, task);
}

}  // namespace

Error latent_quantize(const LatentLevels& levels, const LatentQuantizeTask<float>& task,
                      const Queue& queue) {
  return run_latents(levels, task, queue);
}

Error latent_quantize(const LatentLevels& levels, const LatentQuantizeTask<double>& task,
                      const Queue& queue) {
  return run_latents(levels, task, queue);
}

Error latent_quantize_backward(const LatentLevels& levels, const LatentBackwardTask<float>& task,
                               const Queue& queue) {
  return run_backward(levels, task, queue);
}

Error latent_quantize_backward(const LatentLevels& levels, const LatentBackwardTask<double>& task,
                               const Queue& queue) {
  return run_backward(levels, task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
