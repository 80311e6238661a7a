#include "kernels/cuda/dead_codes.h"

#include "kernels/cuda/candidates-inl.h"
#include "kernels/cuda/code_totals-inl.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements-inl.h"
#include "kernels/dead_code_order.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kRowThreads = 256;

// 16 codebooks fit the 4 KiB of arguments that a launch takes on every card.
static_assert(sizeof(Tasks<DeadCodeTask<float>>) + sizeof(int64_t*) <= 4096);

/// Of `dead` codes those that a step of `tokens` tokens replaces at most.
template <typename T>
__device__ int64_t most_replaced(const DeadCodeTask<T>& task, int64_t dead, int64_t tokens) {
  const double most = ceil(static_cast<double>(tokens) * task.most_per_token);
  if (!(most < static_cast<double>(dead))) return dead;  // NaN: no limit
  return most > 0 ? static_cast<int64_t>(most) : 0;
}

/// One block per head: finds and counts the dead codes.
template <typename T>
__global__ void __launch_bounds__(kSizeThreads, 1) find_dead(Tasks<DeadCodeTask<T>> tasks) {
  const DeadCodeTask<T>& task = tasks.of[blockIdx.y];
  const int64_t size = task.candidates.most;
  const uint64_t key = hash_key(task.candidates, kDeadCodeStream);
  for (int64_t head = blockIdx.x; head < task.candidates.heads; head += gridDim.x) {
    const int64_t first = head * size;
    const double total = total_of_block(task.cluster_size + first, size);
    double limit = total / static_cast<double>(size) * task.threshold_fraction;
    if (limit < task.threshold) limit = task.threshold;  // if NaN, no code is dead
    long long dead = 0, tokens = 0;
    for (int64_t k = threadIdx.x; k < size; k += kSizeThreads) {
      const double own = task.cluster_size[first + k];
      const bool spared = !task.replace_used && task.counts[first + k] != 0;
      const bool is_dead = own < limit && !spared;
      task.order[first + k] = is_dead ? dead_code_number(key, first + k) : kBehindDeadCodes;
      dead += is_dead;
      tokens += task.counts[first + k];
    }
    const auto sum = [](long long a, long long b) { return a + b; };
    dead = of_block(dead, sum);
    tokens = of_block(tokens, sum);
    if (threadIdx.x != 0) continue;
    task.candidates.wanted[head] = most_replaced(task, dead, tokens);
    task.of_head[head].dead = dead;
    task.of_head[head].reset = limit < task.reset_cluster_size ? task.reset_cluster_size : limit;
  }
}

template <typename T>
__device__ bool is_dead(const DeadCodeTask<T>& task, int64_t slot) {
  return task.order[slot] < kBehindDeadCodes;
}

/// Dead codes are ordered by their random numbers; ties by index.
__device__ bool comes_before(const double* order, int64_t a, int64_t b) {
  return order[a] < order[b] || (order[a] == order[b] && a < b);
}

/// One warp per code: reserves the keys of live codes. R is the element type of the candidates.
template <typename T, typename R>
__global__ void __launch_bounds__(kRowThreads) add_live_codes(Tasks<DeadCodeTask<T>> tasks) {
  const DeadCodeTask<T>& task = tasks.of[blockIdx.y];
  const CandidateTask& candidates = task.candidates;
  const uint64_t hash = hash_key(candidates);
  for (int64_t slot = grid_warp(); slot < candidates.heads * candidates.most;
       slot += grid_warps()) {
    const int64_t head = slot / candidates.most;
    if (candidates.wanted[head] == 0 || is_dead(task, slot)) continue;
    const T* code = task.embed + slot * candidates.dim;
    const auto value = [&](int64_t d) { return static_cast<R>(code[d]); };
    const uint64_t key = key_of_row(value, candidates.dim, hash, head);
    if (lane_of_warp() == 0) insert(candidates, head, key, kLiveCode);
  }
}

/// One warp per dead code, if not all are replaced: the last code to be replaced records its
/// index.
template <typename T>
__global__ void __launch_bounds__(kRowThreads) find_last(Tasks<DeadCodeTask<T>> tasks) {
  const DeadCodeTask<T>& task = tasks.of[blockIdx.y];
  const int64_t size = task.candidates.most;
  for (int64_t slot = grid_warp(); slot < task.candidates.heads * size; slot += grid_warps()) {
    const int64_t head = slot / size, first = head * size, k = slot - first;
    const int64_t found = task.candidates.found[head];
    if (found == task.of_head[head].dead || found == 0 || !is_dead(task, slot)) continue;
    int before = 0;
    for (int64_t other = lane_of_warp(); other < size; other += kWarp)
      before += comes_before(task.order + first, other, k);
    before = sum_of_warp(before);
    if (lane_of_warp() == 0 && before == found - 1) task.of_head[head].last = k;
  }
}

/// The j-th dead code to be replaced, by index, takes the j-th candidate.
struct Service {
  const double* order;
  bool all;      // dead codes are replaced
  int64_t last;  // otherwise the last code to be replaced

  template <typename T>
  __device__ Service(const DeadCodeTask<T>& task, int64_t head, int64_t found)
      : order(task.order + head * task.candidates.most),
        all(found == task.of_head[head].dead),
        last(all ? 0 : task.of_head[head].last) {}
  __device__ bool serves(int64_t k) const {
    if (!(order[k] < kBehindDeadCodes)) return false;
    return all || k == last || comes_before(order, k, last);
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
__global__ void __launch_bounds__(kRowThreads) write_codes(Tasks<DeadCodeTask<T>> tasks) {
  const DeadCodeTask<T>& task = tasks.of[blockIdx.y];
  const CandidateTask& candidates = task.candidates;
  const int64_t dim = candidates.dim, size = candidates.most;
  for (int64_t slot = grid_warp(); slot < candidates.heads * size; slot += grid_warps()) {
    const int64_t head = slot / size, k = slot - head * size;
    const int64_t found = candidates.found[head];
    if (found == 0) continue;
    const Service service(task, head, found);
    if (!service.serves(k)) continue;
    const int64_t row = candidates.chosen[head * size + service.before(k)];
    const X* x = static_cast<const X*>(candidates.x) + (head * candidates.rows + row) * dim;
    const CandidateRow<X> values(x, dim, candidates.unit);
    const T reset = static_cast<T>(task.of_head[head].reset);
    // Adding 0 turns -0 into +0, since both have the same key. Rows that came with
    // keys are copied unchanged.
    const float zero = candidates.keys == nullptr ? 0.0f : -0.0f;
    for (int64_t d = lane_of_warp(); d < dim; d += kWarp) {
      const T code = as_state<T>(values[d] + zero);
      task.embed[slot * dim + d] = code;
      task.embed_avg[slot * dim + d] = narrowed<T>(static_cast<double>(code * reset));
    }
    if (lane_of_warp() == 0) task.cluster_size[slot] = reset;
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

template <typename X>
Error candidates_of(const CandidateTask& task, int64_t* keys, void* values, const Queue& queue) {
  using T = typename CandidateRow<X>::T;
  const Candidates one(task);
  Steps steps(queue);
  clear(one, steps);
  fill<X>(one, steps);
  choose(one, keys, steps);
  steps.run(write_candidates<X>, blocks_for(task.heads * task.most, kRowThreads / kWarp),
            kRowThreads, 0, task, keys, static_cast<T*>(values));
  return steps.error();
}

template <typename T, typename X>
Error replace(const Tasks<DeadCodeTask<T>>& tasks, const Queue& queue) {
  using R = typename CandidateRow<X>::T;
  Candidates candidates;
  for (int i = 0; i < tasks.count; ++i) candidates.add(tasks.of[i].candidates);
  const auto heads = [](const DeadCodeTask<T>& task) { return task.candidates.heads; };
  const auto codes = [](const DeadCodeTask<T>& task) {
    return task.candidates.heads * task.candidates.most;
  };
  if (tasks.most(codes) == 0) return nullptr;
  const Grid by_code = grid_of(tasks, kRowThreads / kWarp, codes);
  Steps steps(queue);
  steps.run(find_dead<T>, grid_of(tasks, 1, heads), kSizeThreads, 0, tasks);
  clear(candidates, steps);
  steps.run(add_live_codes<T, R>, by_code, kRowThreads, 0, tasks);
  fill<X>(candidates, steps);
  choose(candidates, nullptr, steps);
  if (candidates.most(candidate_rows) == 0) return steps.error();
  steps.run(find_last<T>, by_code, kRowThreads, 0, tasks);
  steps.run(write_codes<T, X>, by_code, kRowThreads, 0, tasks);
  return steps.error();
}

template <typename T>
Error replace_rows(const Tasks<DeadCodeTask<T>>& tasks, const Queue& queue) {
  return for_element_type(tasks.of[0].candidates.type,
                          [&]<typename X>(Element<X>) { return replace<T, X>(tasks, queue); });
}

}  // namespace

Error dead_code_candidates(const CandidateTask& task, int64_t* keys, void* values,
                           const Queue& queue) {
  if (task.heads == 0) return nullptr;
  return for_element_type(task.type, [&]<typename X>(Element<X>) {
    return candidates_of<X>(task, keys, values, queue);
  });
}

Error replace_dead_codes(const Tasks<DeadCodeTask<float>>& tasks, const Queue& queue) {
  return replace_rows(tasks, queue);
}

Error replace_dead_codes(const Tasks<DeadCodeTask<double>>& tasks, const Queue& queue) {
  return replace_rows(tasks, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
