// Eight threads of a block are the eight lanes of the CPU's sum over a block of rows, which has the
// same size as on CPU; blocks are added in order. Floating-point sums never use atomics.
#include "kernels/cuda/commitment_loss.h"

#include "kernels/cpu/commitment_loss.h"
#include "kernels/cuda/lanes-inl.h"
#include "kernels/cuda/steps-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 128, kGradientThreads = 256;
constexpr int kTerms = 1024;
constexpr int kSquares = 2048;  // in shared memory; whole groups of lanes
static_assert(kSquares % kLanes == 0);

__device__ bool counts(const bool* mask, int64_t row) { return mask == nullptr || mask[row]; }

/// Counted by each warp.
__device__ int64_t real_rows(const bool* mask, int64_t begin, int64_t end) {
  if (mask == nullptr) return end - begin;
  int64_t count = 0;
  for (int64_t row = begin + lane_of_warp(); row < end; row += kWarp) count += mask[row];
  return sum_of_warp(count);
}

/// The chosen code of number `column` of a row.
template <typename T>
__device__ T code_of(const ScoredLevels<T>& levels, int64_t level, int64_t row, unsigned column,
                     T input) {
  const int64_t apart = levels.head_stride[level];
  int64_t index = levels.indices[row * levels.stride + level];
  if (apart > 0)
    index += row / levels.tokens * apart;  // a division of 64 bits takes longer than the rest
  return isfinite(input) ? levels.codes[level][index * levels.dim + column] : static_cast<T>(NAN);
}

/// The squared differences of `count` numbers from number `place` of row `begin` on, to shared memory, by all threads.
/// Each loads some numbers before it writes the first, so that loads do not wait for one another.
template <bool kChosen, typename T>
__device__ void square_differences(const ScoredLevels<T>& levels, int64_t level, int64_t begin,
                                   int64_t place, int count, double* squares) {
  constexpr int kAtOnce = 4;
  const auto dim = static_cast<unsigned>(levels.dim), first = static_cast<unsigned>(place);
  const int64_t at = begin * levels.dim + place;
  const T *x = levels.inputs[level] + at, *codes = levels.codes[level] + at;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kAtOnce * kThreads) {
    T inputs[kAtOnce], chosen[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int own = i + k * kThreads;
      if (own >= count) continue;
      inputs[k] = x[own];
      if constexpr (kChosen) {
        const unsigned number = first + static_cast<unsigned>(own);
        chosen[k] = code_of(levels, level, begin + number / dim, number % dim, inputs[k]);
      } else {
        chosen[k] = codes[own];
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int own = i + k * kThreads;
      if (own >= count) continue;
      const double difference = static_cast<double>(inputs[k]) - static_cast<double>(chosen[k]);
      squares[own] = difference * difference;
    }
  }
}

/// The partial sum of a lane over rows [begin, end): all threads square, kSquares numbers at a time, and the first of
/// them, the lanes, add.
template <bool kChosen, typename T>
__device__ double lane_of_squares(const ScoredLevels<T>& levels, int64_t level, int64_t begin,
                                  int64_t end, double* squares) {
  const bool* const mask = levels.mask;
  const int64_t dim = levels.dim;
  // If rows consist of whole groups of lanes, they are summed like one long row.
  const bool joined = mask == nullptr && dim % kLanes == 0;
  const int64_t rows = joined ? 1 : end - begin, length = joined ? (end - begin) * dim : dim;
  const auto lane = static_cast<int>(threadIdx.x);
  const int64_t rows_at_once = length < kSquares ? kSquares / max(length, int64_t{1}) : 1;
  double sum = 0;
  for (int64_t first = 0; first < rows; first += rows_at_once) {
    const auto here = static_cast<int>(min(rows_at_once, rows - first));
    for (int64_t offset = 0; offset < length; offset += kSquares) {
      const auto width = static_cast<int>(min(length - offset, static_cast<int64_t>(kSquares)));
      square_differences<kChosen>(levels, level, begin, first * length + offset, here * width,
                                  squares);
      __syncthreads();
      for (int row = 0; lane < kLanes && row < here; ++row) {
        if (!counts(mask, begin + first + row)) continue;
#pragma unroll 8
        for (int i = lane; i < width; i += kLanes) sum += squares[row * width + i];
      }
      __syncthreads();  // before the squares are overwritten
    }
  }
  return sum;
}

/// One block of threads per block of rows of a level. `kChosen`: the levels have indices.
template <typename T, bool kChosen>
__global__ void __launch_bounds__(kThreads, 4)
    sum_blocks(CommitmentLossTask<T> task, int64_t blocks, int64_t rows_of_block) {
  __shared__ double squares[kSquares];
  const auto& levels = task.levels;
  for (int64_t item = blockIdx.x; item < blocks * levels.count; item += gridDim.x) {
    const int64_t level = item / blocks, begin = item % blocks * rows_of_block,
                  end = min(levels.rows, begin + rows_of_block);
    const double sum = lane_total(lane_of_squares<kChosen>(levels, level, begin, end, squares));
    const int64_t real = real_rows(levels.mask, begin, end);
    if (threadIdx.x != 0) continue;
    task.sums[item] = sum;
    task.real[item] = real;
  }
}

/// One block per level; the first thread adds in order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    close_losses(CommitmentLossTask<T> task, int64_t blocks) {
  __shared__ double terms[kTerms];
  __shared__ int64_t real[kTerms];
  const int64_t first_block = blockIdx.x * blocks;
  double total = 0;
  int64_t count = 0;
  for (int64_t from = 0; from < blocks; from += kTerms) {
    const auto wanted = static_cast<int>(min(blocks - from, static_cast<int64_t>(kTerms)));
    for (int i = static_cast<int>(threadIdx.x); i < wanted; i += kThreads) {
      terms[i] = task.sums[first_block + from + i];
      real[i] = task.real[first_block + from + i];
    }
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < wanted; ++i) {
      total += terms[i];
      count += real[i];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  count *= task.levels.dim;
  task.losses[blockIdx.x] = count == 0 ? T(0) : static_cast<T>(total / static_cast<double>(count));
}

__global__ void __launch_bounds__(kGradientThreads)
    count_rows(const bool* mask, int64_t rows, int64_t* real) {
  int64_t count = 0;
  for (int64_t row = grid_thread(); row < rows; row += grid_threads()) count += mask[row];
  count = sum_of_warp(count);
  if (lane_of_warp() == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(real), static_cast<unsigned long long>(count));
}

/// The factor of a level's differences. Halving the count is exact, so without a
/// mask one division is enough.
template <typename T>
__device__ T scale_of_level(const CommitmentGradientTask<T>& task, int level) {
  if (task.mask == nullptr)
    return task.grads[level] / static_cast<T>(static_cast<double>(task.rows * task.dim) / 2);
  const int64_t count = *task.real * task.dim;
  return task.grads[level] * 2 / static_cast<T>(count < 1 ? 1 : count);
}

template <typename T>
__global__ void __launch_bounds__(kGradientThreads) add_gradients(CommitmentGradientTask<T> task) {
  __shared__ T scales[kMostScoredLevels];
  const auto own = static_cast<int>(threadIdx.x);
  if (own < task.count) scales[own] = scale_of_level(task, own);
  __syncthreads();
  const int64_t values = task.rows * task.dim;
  for (int64_t at = grid_thread(); at < values; at += grid_threads()) {
    const bool real = task.mask == nullptr || task.mask[at / task.dim];
    bool first = !task.continues;
    T sum = first ? T(0) : task.grad[at];
    for (int level = task.count - 1; level >= 0; --level) {
      T rest = T(0);
      if (real) rest = task.inputs[level * values + at] - (task.codes ? task.codes[at] : T(0));
      const T part = rest * scales[level];
      sum = first ? part : part + sum;
      first = false;
    }
    sum *= task.share;
    task.grad[at] = task.other ? sum + task.other[at] : sum;
  }
}

template <typename T>
Error run_losses(const CommitmentLossTask<T>& task, const Queue& queue) {
  const auto& levels = task.levels;
  const int64_t blocks = commitment_blocks(levels.rows, levels.dim);
  Steps steps(queue);
  if (blocks > 0) {
    const auto sum = levels.indices != nullptr ? sum_blocks<T, true> : sum_blocks<T, false>;
    steps.run(sum, blocks_for(blocks * levels.count, 1), kThreads, 0, task, blocks,
              rows_of_squared_differences(levels.dim));
  }
  steps.run(close_losses<T>, static_cast<unsigned>(levels.count), kThreads, 0, task, blocks);
  return steps.error();
}

template <typename T>
Error run_gradients(const CommitmentGradientTask<T>& task, const Queue& queue) {
  if (task.rows * task.dim == 0) return nullptr;
  Steps steps(queue);
  if (task.mask != nullptr && !task.continues) {
    steps.add(fill_bytes(queue, task.real, 0, sizeof(int64_t)));
    steps.run(count_rows, blocks_for(task.rows, kGradientThreads * 8), kGradientThreads, 0,
              task.mask, task.rows, task.real);
  }
  steps.run(add_gradients<T>, blocks_for(task.rows * task.dim, kGradientThreads), kGradientThreads,
            0, task);
  return steps.error();
}

}  // namespace

int64_t commitment_blocks(int64_t rows, int64_t dim) {
  const int64_t each = rows_of_squared_differences(dim);
  return (rows + each - 1) / each;
}

Error commitment_losses(const CommitmentLossTask<float>& task, const Queue& queue) {
  return run_losses(task, queue);
}
Error commitment_losses(const CommitmentLossTask<double>& task, const Queue& queue) {
  return run_losses(task, queue);
}
Error commitment_gradients(const CommitmentGradientTask<float>& task, const Queue& queue) {
  return run_gradients(task, queue);
}
Error commitment_gradients(const CommitmentGradientTask<double>& task, const Queue& queue) {
  return run_gradients(task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
