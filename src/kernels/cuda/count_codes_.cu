// Integer atomics give the same result in any order. Levels share the blocks of a launch: block i,
// i + levels, ... process level i.
#include "kernels/cuda/count_codes_.h"

#include "kernels/cuda/steps-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

/// Calls body(level, i) for i in [0, count(level)) of every level.
template <typename Count, typename Body>
__device__ void for_levels(const CountCodesTask& task, const Count& count, const Body& body) {
  const auto levels = static_cast<unsigned>(task.level_count);
  const CountedLevel& level = task.levels[blockIdx.x % levels];
  const int64_t step = static_cast<int64_t>(gridDim.x / levels) * kThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x / levels) * kThreads + threadIdx.x;
  for (; i < count(level); i += step) body(level, i);
}

__global__ void __launch_bounds__(kThreads) clear_counts(CountCodesTask task) {
  for_levels(
      task, [](const CountedLevel& level) { return level.heads * level.size; },
      [](const CountedLevel& level, int64_t i) { level.counts[i] = 0; });
}

__global__ void __launch_bounds__(kThreads) add_tokens(CountCodesTask task) {
  for_levels(
      task, [](const CountedLevel& level) { return level.heads * level.tokens; },
      [](const CountedLevel& level, int64_t i) {
        const int64_t index = level.indices[i];
        expect(index >= -1 && index < level.size, "count_codes_: indices are in [-1, codes)");
        if (index < 0) return;
        int64_t* count = level.counts + i / level.tokens * level.size + index;
        atomicAdd(reinterpret_cast<unsigned long long*>(count), 1ull);
      });
}

}  // namespace

Error count_codes_(const CountCodesTask& task, const Queue& queue) {
  int64_t codes = 0, tokens = 0;
  for (int i = 0; i < task.level_count; ++i) {
    const CountedLevel& level = task.levels[i];
    if (level.heads * level.size > codes) codes = level.heads * level.size;
    if (level.heads * level.tokens > tokens) tokens = level.heads * level.tokens;
  }
  const auto levels = static_cast<unsigned>(task.level_count);
  Steps steps(queue);
  if (codes > 0)
    steps.run(clear_counts, levels * blocks_for(codes, kThreads, 1024), kThreads, 0, task);
  if (tokens > 0)
    steps.run(add_tokens, levels * blocks_for(tokens, kThreads, 1024), kThreads, 0, task);
  return steps.error();
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
