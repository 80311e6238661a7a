#include "kernels/cuda/dead_codes.h"

#include "kernels/cuda/candidates-inl.h"
#include "kernels/cuda/code_totals-inl.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kRowThreads = 256;

template <typename Steps>
__device__ bool ticks_down(Steps& cooldown) {
  const bool ready = cooldown == 0;
  cooldown = cooldown > 0 ? cooldown - 1 : 0;
  return ready;
}

/// Decrements the cool-down of a code; returns whether it was already 0.
__device__ bool cools_down(const DeadCodeTask& task, int64_t slot) {
  if (task.long_cooldown) return ticks_down(static_cast<int64_t*>(task.cooldown)[slot]);
  return ticks_down(static_cast<int32_t*>(task.cooldown)[slot]);
}

__device__ void start_cooldown(const DeadCodeTask& task, int64_t slot) {
  if (task.long_cooldown) {
    static_cast<int64_t*>(task.cooldown)[slot] = task.cooldown_steps;
  } else {
    static_cast<int32_t*>(task.cooldown)[slot] = static_cast<int32_t>(task.cooldown_steps);
  }
}

/// One block per head: finds and counts the dead codes.
template <typename T>
__global__ void __launch_bounds__(kSizeThreads, 1)
    find_dead(DeadCodeTask task, int64_t heads, const T* cluster_size) {
  for (int64_t head = blockIdx.x; head < heads; head += gridDim.x) {
    const int64_t first = head * task.size;
    const double total = total_of_block(cluster_size + first, task.size);
    double limit = total / static_cast<double>(task.size) * task.threshold_fraction;
    if (limit < task.threshold) limit = task.threshold;  // if NaN, no code is dead
    long long dead = 0;
    for (int64_t k = threadIdx.x; k < task.size; k += kSizeThreads) {
      const double size = cluster_size[first + k];
      const bool ready = cools_down(task, first + k);
      const bool is_dead = ready && size < limit && task.counts[first + k] == 0;
      task.dead_sizes[first + k] = is_dead ? size : static_cast<double>(INFINITY);
      dead += is_dead;
    }
    dead = of_block(dead, [](long long a, long long b) { return a + b; });
    if (threadIdx.x != 0) continue;
    task.dead[head] = dead;
    task.reset[head] = limit < task.reset_cluster_size ? task.reset_cluster_size : limit;
  }
}

__device__ bool is_dead(const DeadCodeTask& task, int64_t slot) {
  return task.dead_sizes[slot] < static_cast<double>(INFINITY);
}

/// Dead codes are ordered by cluster size; ties by index.
__device__ bool comes_before(const double* sizes, int64_t a, int64_t b) {
  return sizes[a] < sizes[b] || (sizes[a] == sizes[b] && a < b);
}

/// One warp per code: reserves the keys of live codes. R is the element type of the candidates.
template <typename T, typename R>
__global__ void __launch_bounds__(kRowThreads)
    add_live_codes(DeadCodeTask task, CandidateTask candidates, const T* embed) {
  const uint64_t hash = hash_key(candidates);
  for (int64_t slot = grid_warp(); slot < candidates.heads * task.size; slot += grid_warps()) {
    const int64_t head = slot / task.size;
    if (task.dead[head] == 0 || is_dead(task, slot)) continue;
    const T* code = embed + slot * candidates.dim;
    const auto value = [&](int64_t d) { return static_cast<R>(code[d]); };
    const uint64_t key = key_of_row(value, candidates.dim, hash, head);
    if (lane_of_warp() == 0) insert(candidates, head, key, kLiveCode);
  }
}

/// One warp per dead code, if there are fewer candidates: the last code to be
/// replaced records its index.
__global__ void __launch_bounds__(kRowThreads)
    find_last(DeadCodeTask task, CandidateTask candidates) {
  for (int64_t slot = grid_warp(); slot < candidates.heads * task.size; slot += grid_warps()) {
    const int64_t head = slot / task.size, first = head * task.size, k = slot - first;
    const int64_t found = candidates.found[head];
    if (found == task.dead[head] || found == 0 || !is_dead(task, slot)) continue;
    int before = 0;
    for (int64_t other = lane_of_warp(); other < task.size; other += kWarp)
      before += comes_before(task.dead_sizes + first, other, k);
    before = sum_of_warp(before);
    if (lane_of_warp() == 0 && before == found - 1) task.last[head] = k;
  }
}

/// The j-th dead code to be replaced, by index, takes the j-th candidate.
struct Service {
  const DeadCodeTask& task;
  const double* sizes;
  bool all;      // there are as many candidates as dead codes
  int64_t last;  // otherwise the last code to be replaced

  __device__ Service(const DeadCodeTask& dead, int64_t head, int64_t found)
      : task(dead),
        sizes(dead.dead_sizes + head * dead.size),
        all(found == dead.dead[head]),
        last(all ? 0 : dead.last[head]) {}
  __device__ bool serves(int64_t k) const {
    if (!(sizes[k] < static_cast<double>(INFINITY))) return false;
    return all || k == last || comes_before(sizes, k, last);
  }
  /// Number of codes before k that are replaced, counted by a warp.
  __device__ int64_t before(int64_t k) const {
    int count = 0;
    for (int64_t other = lane_of_warp(); other < k; other += kWarp) count += serves(other);
    return sum_of_warp(count);
  }
};

/// Narrows as detail/precision.h does: float64 values are clamped to the range of the state.
template <typename T>
__device__ T as_state(float value) {
  return value;
}
template <typename T>
__device__ T as_state(double value) {
  return narrowed<T>(value);
}

/// One warp per code. X is the element type of the candidates' rows.
template <typename T, typename X>
__global__ void __launch_bounds__(kRowThreads)
    write_codes(DeadCodeTask task, CandidateTask candidates, DeadCodeState<T> state) {
  const int64_t dim = candidates.dim;
  for (int64_t slot = grid_warp(); slot < candidates.heads * task.size; slot += grid_warps()) {
    const int64_t head = slot / task.size, k = slot - head * task.size;
    const int64_t found = candidates.found[head];
    if (found == 0) continue;
    const Service service(task, head, found);
    if (!service.serves(k)) continue;
    const int64_t row = candidates.chosen[head * candidates.most + service.before(k)];
    const X* x = static_cast<const X*>(candidates.x) + (head * candidates.rows + row) * dim;
    const CandidateRow<X> values(x, dim, candidates.unit);
    const T reset = static_cast<T>(task.reset[head]);
    // Adding 0 turns -0 into +0, since both have the same key. Rows that came with
    // keys are copied unchanged.
    const float zero = candidates.keys == nullptr ? 0.0f : -0.0f;
    for (int64_t d = lane_of_warp(); d < dim; d += kWarp) {
      const T code = as_state<T>(values[d] + zero);
      state.embed[slot * dim + d] = code;
      state.embed_avg[slot * dim + d] = narrowed<T>(static_cast<double>(code * reset));
    }
    if (lane_of_warp() != 0) continue;
    state.cluster_size[slot] = reset;
    start_cooldown(task, slot);
  }
}

/// One warp per wanted candidate.
template <typename X>
__global__ void __launch_bounds__(kRowThreads, 2)
    write_candidates(CandidateTask task, int64_t* keys, typename CandidateRow<X>::T* to) {
  for (int64_t item = grid_warp(); item < task.heads * task.most; item += grid_warps()) {
    const int64_t head = item / task.most;
    if (item - head * task.most >= task.found[head]) {
      for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp) to[item * task.dim + d] = 0;
      if (lane_of_warp() == 0) keys[item] = static_cast<int64_t>(kEmpty ^ kSign);
      continue;
    }
    const X* x = static_cast<const X*>(task.x) + (head * task.rows + task.chosen[item]) * task.dim;
    const CandidateRow<X> values(x, task.dim, task.unit);
    for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp)
      to[item * task.dim + d] = values[d] + 0;
  }
}

/// Blocks for `items` items, one warp each.
unsigned blocks_of_warps(int64_t items) { return blocks_for(items, kRowThreads / kWarp); }

Error clear(const CandidateTask& task, const Queue& queue) {
  const int64_t words = task.heads * (task.slots + kCandidateBinWords);
  return launch(clear_table, queue, blocks_for(words, kCandidateThreads), kCandidateThreads, 0,
                task);
}

template <typename X>
Error fill(const CandidateTask& task, const Queue& queue) {
  const int64_t rows = task.heads * task.rows;
  if (rows == 0) return nullptr;
  if (task.keys != nullptr) {
    return launch(add_keys, queue, blocks_for(rows, kCandidateThreads), kCandidateThreads, 0, task);
  }
  return launch(add_rows<X>, queue, blocks_of_warps(rows), kRowThreads, 0, task);
}

template <typename X>
Error candidates_of(const CandidateTask& task, int64_t* keys, void* values, const Queue& queue) {
  using T = typename CandidateRow<X>::T;
  if (const auto error = clear(task, queue)) return error;
  if (const auto error = fill<X>(task, queue)) return error;
  if (const auto error = choose(task, keys, queue)) return error;
  return launch(write_candidates<X>, queue, blocks_of_warps(task.heads * task.most), kRowThreads, 0,
                task, keys, static_cast<T*>(values));
}

template <typename T, typename X>
Error replace(const DeadCodeTask& task, const CandidateTask& candidates,
              const DeadCodeState<T>& state, const Queue& queue) {
  using R = typename CandidateRow<X>::T;
  const unsigned blocks = blocks_of_warps(candidates.heads * task.size);
  if (const auto error =
          launch(find_dead<T>, queue, blocks_for(candidates.heads, 1), kSizeThreads, 0, task,
                 candidates.heads, static_cast<const T*>(state.cluster_size)))
    return error;
  if (const auto error = clear(candidates, queue)) return error;
  if (const auto error = launch(add_live_codes<T, R>, queue, blocks, kRowThreads, 0, task,
                                candidates, static_cast<const T*>(state.embed)))
    return error;
  if (const auto error = fill<X>(candidates, queue)) return error;
  if (const auto error = choose(candidates, nullptr, queue)) return error;
  if (candidates.rows == 0) return nullptr;
  if (const auto error = launch(find_last, queue, blocks, kRowThreads, 0, task, candidates))
    return error;
  return launch(write_codes<T, X>, queue, blocks, kRowThreads, 0, task, candidates, state);
}

template <typename T>
Error replace_rows(const DeadCodeTask& task, const CandidateTask& candidates,
                   const DeadCodeState<T>& state, const Queue& queue) {
  if (candidates.heads * task.size == 0) return nullptr;
  return for_element_type(candidates.type, [&]<typename X>(Element<X>) {
    return replace<T, X>(task, candidates, state, queue);
  });
}

}  // namespace

Error dead_code_candidates(const CandidateTask& task, int64_t* keys, void* values,
                           const Queue& queue) {
  if (task.heads == 0) return nullptr;
  return for_element_type(task.type, [&]<typename X>(Element<X>) {
    return candidates_of<X>(task, keys, values, queue);
  });
}

Error replace_dead_codes(const DeadCodeTask& task, const CandidateTask& candidates,
                         const DeadCodeState<float>& state, const Queue& queue) {
  return replace_rows(task, candidates, state, queue);
}

Error replace_dead_codes(const DeadCodeTask& task, const CandidateTask& candidates,
                         const DeadCodeState<double>& state, const Queue& queue) {
  return replace_rows(task, candidates, state, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
