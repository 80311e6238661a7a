#include "kernels/cuda/code_statistics.h"

#include <algorithm>

#include "kernels/cuda/code_exponents-inl.h"
#include "kernels/cuda/elements-inl.h"
#include "kernels/cuda/steps-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kStatisticsThreads = 256;
using Word = unsigned long long;  // the type that atomics support; wraps around like int64_t

/// One warp per row: finds its slot, or -1 if the row does not count, and updates count and
/// exponent: `used` counts from the smallest exponent, so that it begins with zeros.
template <typename T>
__device__ void find_slots_of(const CodeStatisticsTask& task) {
  const T* x = static_cast<const T*>(task.x);
  const int64_t rows = task.heads * task.tokens;
  for (int64_t row = grid_warp(); row < rows; row += grid_warps()) {
    const int64_t index = task.indices[row];
    int64_t slot = -1;
    if (index != -1 && (task.mask == nullptr || task.mask[row])) {
      expect(index >= 0 && index < task.size, "code_statistics: indices are in [-1, codes)");
      slot = row / task.tokens * task.size + index;
      const double magnitude = largest_magnitude(x + row * task.dim, task.dim);
      if (!(magnitude <= kLargestSummed)) {  // NaN, too
        slot = -1;
      } else if (lane_of_warp() == 0) {
        atomicMax(task.used + slot, exponent_of(magnitude) - kMinExponent);
        atomicAdd(reinterpret_cast<Word*>(task.counts + slot), Word{1});
      }
    }
    if (lane_of_warp() == 0) task.slots[row] = slot;
  }
}

template <typename T>
__global__ void __launch_bounds__(kStatisticsThreads) find_slots(Tasks<CodeStatisticsTask> tasks) {
  find_slots_of<T>(tasks.of[blockIdx.y]);
}

/// C is the element type of the codes.
template <typename C, typename T>
__global__ void __launch_bounds__(kStatisticsThreads)
    find_exponents_and_slots(Tasks<CodeExponentsTask> codes, Tasks<CodeStatisticsTask> tokens) {
  find_own_exponents<C>(codes.of[blockIdx.y]);
  find_slots_of<T>(tokens.of[blockIdx.y]);
}

/// Makes exponents of what find_slots() has counted.
__global__ void __launch_bounds__(kStatisticsThreads)
    raise_exponents(Tasks<CodeStatisticsTask> tasks) {
  const CodeStatisticsTask& task = tasks.of[blockIdx.y];
  const int64_t slots = task.heads * task.size;
  for (int64_t slot = grid_thread(); slot < slots; slot += grid_threads()) {
    int32_t given = task.exponents[slot];
    if (task.totals != nullptr) given = raised_to_mean(given, task.totals + slot / task.size * 2);
    given = clamp_exponent(given);
    const int32_t largest = task.used[slot] + kMinExponent;
    task.used[slot] = largest > given + kHeadroomBits ? largest : given;
  }
}

template <typename T>
__global__ void __launch_bounds__(kStatisticsThreads) add_tokens(Tasks<CodeStatisticsTask> tasks) {
  const CodeStatisticsTask& task = tasks.of[blockIdx.y];
  const T* x = static_cast<const T*>(task.x);
  const int64_t rows = task.heads * task.tokens;
  const int64_t word = task.heads * task.size * task.dim;
  for (int64_t row = grid_warp(); row < rows; row += grid_warps()) {
    const int64_t slot = task.slots[row];
    if (slot < 0) continue;
    const double scale = power_of_two(kUnitBits - task.used[slot]);
    auto* sums = reinterpret_cast<Word*>(task.sums) + slot * task.dim;
    for (int64_t d = lane_of_warp(); d < task.dim; d += kWarp) {
      const double scaled = to_float(x[row * task.dim + d]) * scale;
      const long long whole = __double2ll_rn(scaled);
      if (whole != 0) atomicAdd(sums + d, static_cast<Word>(whole));
      if constexpr (sizeof(T) == sizeof(double)) {
        const double rest = (scaled - static_cast<double>(whole)) * 4294967296.0;
        atomicAdd(sums + word + d, static_cast<Word>(__double2ll_rn(rest)));
      }
    }
  }
}

using Codes = Tasks<CodeExponentsTask>;
using Tokens = Tasks<CodeStatisticsTask>;

template <typename Task>
int64_t most_slots(const Tasks<Task>& tasks) {
  return tasks.most([](const Task& task) { return task.heads * task.size; });
}

int64_t most_rows(const Tokens& tasks) {
  return tasks.most([](const CodeStatisticsTask& task) { return task.heads * task.tokens; });
}

/// Warps for `items` items, in each task.
Grid by_warp(int64_t items, int tasks) {
  return {blocks_for(items, kStatisticsThreads / kWarp), tasks};
}

template <typename T>
void add(const Tokens& tasks, Steps& steps) {
  steps.run(raise_exponents, {blocks_for(most_slots(tasks), kStatisticsThreads), tasks.count},
            kStatisticsThreads, 0, tasks);
  const int64_t rows = most_rows(tasks);
  if (rows > 0) steps.run(add_tokens<T>, by_warp(rows, tasks.count), kStatisticsThreads, 0, tasks);
}

template <typename C, typename T>
void find_both(const Codes& codes, const Tokens& tokens, Steps& steps) {
  const Grid grid = by_warp(std::max(most_slots(codes), most_rows(tokens)), tokens.count);
  steps.run(find_exponents_and_slots<C, T>, grid, kStatisticsThreads, 0, codes, tokens);
}

}  // namespace

Error code_statistics(const Tokens& tasks, const Queue& queue) {
  if (most_slots(tasks) == 0) return nullptr;
  Steps steps(queue);
  for_element_type(tasks.of[0].type, [&]<typename T>(Element<T>) {
    const int64_t rows = most_rows(tasks);
    if (rows > 0)
      steps.run(find_slots<T>, by_warp(rows, tasks.count), kStatisticsThreads, 0, tasks);
    add<T>(tasks, steps);
  });
  return steps.error();
}

Error step_statistics(const Codes& codes, const Tokens& tokens, const Queue& queue) {
  if (most_slots(codes) == 0) return nullptr;
  Steps steps(queue);
  for_element_type(tokens.of[0].type, [&]<typename T>(Element<T>) {
    const bool wide = codes.of[0].type == ElementType::kDouble;
    const auto find = wide ? find_both<double, T> : find_both<float, T>;
    find(codes, tokens, steps);
    add<T>(tokens, steps);
  });
  return steps.error();
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
