#include "kernels/cuda/ema_update.h"

#include <limits>

#include "kernels/cpu/codebook_average.h"
#include "kernels/cuda/code_totals-inl.h"
#include "kernels/cuda/steps-inl.h"
#include "kernels/fixed_point.h"
#include "kernels/unused_below.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kRowThreads = 256;

__device__ double weight_of(const EmaUpdateTask& task, int64_t slot) {
  return (task.weight ? task.weight[slot] : 1.0) * task.step;
}

/// Counts and marks the unused codes among the faint ones of a head; by a whole block, after all sizes and marks are
/// written.
template <typename T>
__device__ void find_unused(const EmaUpdateTask& task, const T* sizes, int64_t head) {
  int32_t* use = task.use + head * task.size;
  const double total = total_of_block(sizes, task.size);
  const double limit = unused_below(task.decay, total, task.size);
  int unused_codes = 0;
  for (int64_t k = threadIdx.x; k < task.size; k += kSizeThreads) {
    if (use[k] != kFaint || !(static_cast<double>(sizes[k]) < limit)) continue;
    use[k] = kUnused;
    ++unused_codes;
  }
  unused_codes = of_block(unused_codes, [](int a, int b) { return a + b; });
  if (threadIdx.x != 0) return;
  task.totals[head] = total;
  task.in_use[head] = static_cast<int32_t>(task.size) - unused_codes;
}

/// One block per head: sizes before and after the step, and unused codes.
template <typename T>
__global__ void __launch_bounds__(kSizeThreads, 1) move_sizes(Tasks<EmaStep<T>> steps) {
  const EmaStep<T>& task = steps.of[blockIdx.y];
  const EmaState<T>& state = task.state;
  const double mass = static_cast<double>(task.size) * task.eps;
  for (int64_t head = blockIdx.x; head < task.heads; head += gridDim.x) {
    const int64_t first = head * task.size;
    T* sizes = state.cluster_size + first;
    int any = 0;
    for (int64_t k = threadIdx.x; k < task.size; k += kSizeThreads)
      any |= task.counts[first + k] != 0;
    any = of_block(any, [](int a, int b) { return a | b; });
    if (any == 0) {  // the same for the whole block: a head without tokens does not change
      if (threadIdx.x == 0) task.in_use[head] = -1;
      continue;
    }
    const double total_before = total_of_block(sizes, task.size);
    const double faint = faint_below(task.decay);
    for (int64_t k = threadIdx.x; k < task.size; k += kSizeThreads) {
      const double size = sizes[k];
      task.before[first + k] = smoothed_size(size, task.eps, total_before, total_before + mass);
      const int64_t count = task.counts[first + k];
      const T next =
          static_cast<T>(decayed(size, weight_of(task, first + k), static_cast<double>(count)));
      sizes[k] = next;
      task.use[first + k] = count == 0 && static_cast<double>(next) < faint ? kFaint : kInUse;
    }
    __syncthreads();  // all sizes are written
    find_unused(task, sizes, head);
  }
}

/// The place of a code: codes in use by descending size, ties by index; unused codes by
/// index. Runs in one warp.
template <typename T>
__device__ void find_place(const EmaUpdateTask& task, const T* sizes, int64_t head, int64_t k) {
  const int64_t first = head * task.size;
  const bool unused = task.use[first + k] == kUnused;
  int before = 0;
  for (int64_t other = lane_of_warp(); other < task.size; other += kWarp) {
    if ((task.use[first + other] == kUnused) != unused) continue;
    const bool heavier = sizes[other] > sizes[k] || (sizes[other] == sizes[k] && other < k);
    before += unused ? other < k : heavier;
  }
  before = sum_of_warp(before);
  if (lane_of_warp() != 0) return;
  // Other warps still read `unused`, so unused codes are recorded at the end of `heaviest`.
  if (unused) {
    task.heaviest[first + task.size - 1 - before] = static_cast<int32_t>(k);
  } else {
    task.heaviest[first + before] = static_cast<int32_t>(k);
  }
}

/// norm_in_order by a warp; one lane adds, since the order is part of the result.
template <typename T>
__device__ void make_unit(T* code, int64_t dim) {
  __syncwarp();  // the row was written by all lanes
  double norm = lane_of_warp() == 0 ? norm_in_order(code, dim) : 0.0;
  norm = __shfl_sync(kWholeWarp, norm, 0);
  if (!(norm > 0)) return;
  for (int64_t d = lane_of_warp(); d < dim; d += kWarp)
    code[d] = static_cast<T>(static_cast<double>(code[d]) / norm);
}

template <typename T>
__device__ double start_of(const EmaUpdateTask& task, const EmaState<T>& state, int64_t slot,
                           int64_t at) {
  if (!task.from_codebook) return state.embed_avg[at];
  return narrowed<T>(static_cast<double>(state.embed[at]) * task.before[slot]);
}

/// One warp per code: its average, and the code computed from it.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, 2) move_rows(Tasks<EmaStep<T>> steps) {
  const EmaStep<T>& task = steps.of[blockIdx.y];
  const EmaState<T>& state = task.state;
  const int64_t slots = task.heads * task.size, word = slots * task.dim;
  for (int64_t slot = grid_warp(); slot < slots; slot += grid_warps()) {
    const int64_t head = slot / task.size;
    if (task.in_use[head] < 0) continue;
    const double total = task.totals[head], weight = weight_of(task, slot);
    const double mass = total + static_cast<double>(task.size) * task.eps;
    const double after =
        smoothed_size(static_cast<double>(state.cluster_size[slot]), task.eps, total, mass);
    const bool finish = task.finish && task.use[slot] == kInUse && after > 0;
    const bool has_tokens = task.counts[slot] != 0;
    for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp) {
      const int64_t at = slot * task.dim + d;
      double sum = 0;
      if (has_tokens)
        sum = task.two_words
                  ? decode_sum_pair(task.sums[at], task.sums[word + at], task.exponents[slot])
                  : decode_sum<double>(task.sums[at], task.exponents[slot]);
      const T average = narrowed<T>(decayed(start_of(task, state, slot, at), weight, sum));
      state.embed_avg[at] = average;
      if (finish) state.embed[at] = narrowed<T>(static_cast<double>(average) / after);
    }
    if (finish && task.unit) make_unit(state.embed + slot * task.dim, task.dim);
    const bool draws = task.finish && total > 0 && task.in_use[head] < task.size;
    if (draws) find_place(task, state.cluster_size + head * task.size, head, slot % task.size);
  }
}

/// One warp per unused code, which moves towards a heavy one.
template <typename T>
__global__ void __launch_bounds__(kRowThreads) draw_unused(Tasks<EmaStep<T>> steps) {
  const EmaStep<T>& task = steps.of[blockIdx.y];
  const EmaState<T>& state = task.state;
  const int64_t slots = task.heads * task.size;
  for (int64_t slot = grid_warp(); slot < slots; slot += grid_warps()) {
    const int64_t head = slot / task.size, first = head * task.size, place = slot - first;
    const int64_t in_use = task.in_use[head];
    // Places after the codes in use hold the unused codes, in descending order of index.
    if (in_use <= 0 || place < in_use || !(task.totals[head] > 0)) continue;
    const int64_t code = first + task.heaviest[slot], order = task.size - 1 - place;
    const T* target = state.embed + (first + task.heaviest[first + order % in_use]) * task.dim;
    T* to = state.embed + code * task.dim;
    const double step = drawn_by(weight_of(task, code), task.decay);
    for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp) {
      const double from = to[d];
      to[d] = narrowed<T>(from + step * (static_cast<double>(target[d]) - from));
    }
    if (task.unit) make_unit(to, task.dim);
  }
}

/// ema_finish_, one block per head: the sum of its sizes, and the unused codes.
template <typename T>
__global__ void __launch_bounds__(kSizeThreads, 1) look_at_sizes(EmaStep<T> task) {
  const T* cluster_size = task.state.cluster_size;
  for (int64_t head = blockIdx.x; head < task.heads; head += gridDim.x) {
    const int64_t first = head * task.size;
    const double faint = faint_below(task.decay);
    for (int64_t k = threadIdx.x; k < task.size; k += kSizeThreads)
      task.use[first + k] = static_cast<double>(cluster_size[first + k]) < faint ? kFaint : kInUse;
    __syncthreads();  // all marks are written
    find_unused(task, cluster_size + first, head);
  }
}

/// ema_finish_, one warp per code: the code computed from its average.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, 2) finish_rows(EmaStep<T> task) {
  const EmaState<T>& state = task.state;
  for (int64_t slot = grid_warp(); slot < task.heads * task.size; slot += grid_warps()) {
    const int64_t head = slot / task.size;
    const double total = task.totals[head];
    const double mass = total + static_cast<double>(task.size) * task.eps;
    const double size =
        smoothed_size(static_cast<double>(state.cluster_size[slot]), task.eps, total, mass);
    if (task.use[slot] == kInUse && size > 0) {
      for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp) {
        const int64_t at = slot * task.dim + d;
        state.embed[at] = narrowed<T>(static_cast<double>(state.embed_avg[at]) / size);
      }
      if (task.unit) make_unit(state.embed + slot * task.dim, task.dim);
    }
    if (total > 0 && task.in_use[head] < task.size)
      find_place(task, state.cluster_size + head * task.size, head, slot % task.size);
  }
}

template <typename T>
Error run_finish(const EmaStep<T>& step, const Queue& queue) {
  const int64_t slots = step.heads * step.size;
  if (slots == 0) return nullptr;
  const unsigned blocks = blocks_for(slots, kRowThreads / kWarp);
  Steps steps(queue);
  steps.run(look_at_sizes<T>, blocks_for(step.heads, 1), kSizeThreads, 0, step);
  steps.run(finish_rows<T>, blocks, kRowThreads, 0, step);
  steps.run(draw_unused<T>, blocks, kRowThreads, 0, Tasks<EmaStep<T>>(step));
  return steps.error();
}

template <typename T>
Error run(const Tasks<EmaStep<T>>& tasks, const Queue& queue) {
  const int64_t heads = tasks.most([](const EmaStep<T>& task) { return task.heads; });
  const int64_t slots = tasks.most([](const EmaStep<T>& task) { return task.heads * task.size; });
  if (slots == 0) return nullptr;
  const Grid by_row = {blocks_for(slots, kRowThreads / kWarp), tasks.count};
  Steps steps(queue);
  steps.run(move_sizes<T>, {blocks_for(heads, 1), tasks.count}, kSizeThreads, 0, tasks);
  steps.run(move_rows<T>, by_row, kRowThreads, 0, tasks);
  if (tasks.of[0].finish) steps.run(draw_unused<T>, by_row, kRowThreads, 0, tasks);
  return steps.error();
}

}  // namespace

Error ema_update(const Tasks<EmaStep<float>>& steps, const Queue& queue) {
  return run(steps, queue);
}

Error ema_update(const Tasks<EmaStep<double>>& steps, const Queue& queue) {
  return run(steps, queue);
}

Error ema_finish(const EmaStep<float>& step, const Queue& queue) { return run_finish(step, queue); }

Error ema_finish(const EmaStep<double>& step, const Queue& queue) {
  return run_finish(step, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
