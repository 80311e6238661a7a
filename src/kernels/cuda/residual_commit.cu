// A thread takes an element of a row through all levels and keeps its residual and sum in
// registers. Whether a level's input is not finite is known only after the whole row; then the
// levels from there on are written again, which few rows need.
#include "kernels/cuda/residual_commit.h"

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

/// Processes element d of a row; returns the first level whose input is not finite.
template <typename T>
__device__ int walk_element(const ResidualCommitTask<T>& task, int64_t head, int64_t row,
                            int64_t d) {
  const int64_t at = row * task.dim + d, values = task.heads * task.tokens * task.dim;
  const int64_t* indices = task.indices + row * task.stride;
  T left = task.x[at], sum = task.continues ? task.quantized[at] : T(0);
  int lost = task.level_count;
  T* to = task.residuals + at;
#pragma unroll 1
  for (int q = 0; q < task.level_count; ++q) {
    const WalkedLevel<T>& level = task.levels[q];
    const int64_t index = indices[q];
    expect(index >= 0 && index < level.size, "residual_commit: indices are in [0, codes)");
    const T code = level.codebook[(head * level.head_stride + index) * task.dim + d];
    if (!isfinite(left)) lost = min(lost, q);
    sum += code;
    left -= code;
    *to = left;
    to += values;
  }
  task.quantized[at] = sum;
  return lost;
}

/// From level `lost` on, the row has no codes.
template <typename T>
__device__ void lose_element(const ResidualCommitTask<T>& task, int64_t at, int lost) {
  const T nothing = static_cast<T>(NAN);
  const int64_t values = task.heads * task.tokens * task.dim;
  for (int q = lost; q < task.level_count; ++q) task.residuals[q * values + at] = nothing;
  task.quantized[at] = nothing;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) walk_rows(ResidualCommitTask<T> task, int across) {
  const int at_once = kThreads / across, place = static_cast<int>(threadIdx.x) / across,
            lane = static_cast<int>(threadIdx.x) % across;
  const int64_t rows = task.heads * task.tokens;
  const int64_t step = static_cast<int64_t>(gridDim.x) * at_once;
  // All threads of a block run the same number of rounds, as the shuffles require.
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * at_once; first < rows; first += step) {
    const int64_t row = first + place, dim = row < rows ? task.dim : 0;
    const int64_t head = row / task.tokens;
    int lost = task.level_count;
    for (int64_t d = lane; d < dim; d += across) lost = min(lost, walk_element(task, head, row, d));
    for (int distance = across / 2; distance > 0; distance /= 2)
      lost = min(lost, __shfl_xor_sync(kWholeWarp, lost, distance));
    if (lost == task.level_count) continue;
    for (int64_t d = lane; d < dim; d += across) lose_element(task, row * dim + d, lost);
  }
}

template <typename T>
Error walk(const ResidualCommitTask<T>& task, const Queue& queue) {
  const int64_t rows = task.heads * task.tokens;
  if (rows * task.dim == 0) return nullptr;
  int across = 1;
  while (across < task.dim && across < kWarp) across *= 2;
  return launch(walk_rows<T>, queue, blocks_for(rows, kThreads / across), kThreads, 0, task,
                across);
}

}  // namespace

Error residual_commit(const ResidualCommitTask<float>& task, const Queue& queue) {
  return walk(task, queue);
}
Error residual_commit(const ResidualCommitTask<double>& task, const Queue& queue) {
  return walk(task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
