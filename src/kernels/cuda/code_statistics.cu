#include "kernels/cuda/code_statistics.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements-inl.h"
#include "kernels/cuda/magnitude-inl.h"
#include "kernels/cuda/steps-inl.h"
#include "kernels/exponents.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kStatisticsThreads = 256;
using Word = unsigned long long;  // the type that atomics support; wraps around like int64_t

/// One warp per row: finds its slot, or -1 if the row does not count, and
/// updates count and exponent.
template <typename T>
__global__ void __launch_bounds__(kStatisticsThreads) find_slots(Tasks<CodeStatisticsTask> tasks) {
  const CodeStatisticsTask& task = tasks.of[blockIdx.y];
  const T* x = static_cast<const T*>(task.x);
  const int64_t rows = task.heads * task.tokens;
  for (int64_t row = grid_warp(); row < rows; row += grid_warps()) {
    const int64_t index = task.indices[row];
    int64_t slot = -1;
    if (index != -1 && (task.mask == nullptr || task.mask[row])) {
      expect(index >= 0 && index < task.size, "code_statistics: indices are in [-1, codes)");
      slot = row / task.tokens * task.size + index;
      const double magnitude = largest_magnitude(x + row * task.dim, task.dim);
      if (!isfinite(magnitude)) {
        slot = -1;
      } else if (lane_of_warp() == 0) {
        atomicMax(task.used + slot, exponent_of(magnitude));
        atomicAdd(reinterpret_cast<Word*>(task.counts + slot), Word{1});
      }
    }
    if (lane_of_warp() == 0) task.slots[row] = slot;
  }
}

/// On entry `used` holds the largest exponent of each code's tokens, or kNoExponent.
__global__ void __launch_bounds__(kStatisticsThreads)
    raise_exponents(Tasks<CodeStatisticsTask> tasks) {
  const CodeStatisticsTask& task = tasks.of[blockIdx.y];
  const int64_t slots = task.heads * task.size;
  for (int64_t slot = grid_thread(); slot < slots; slot += grid_threads()) {
    const int32_t largest = max(task.used[slot], kMinExponent);
    const int32_t given = clamp_exponent(task.exponents[slot]);
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

template <typename T>
Error run(const Tasks<CodeStatisticsTask>& tasks, int64_t slots, const Queue& queue) {
  const int64_t rows =
      tasks.most([](const CodeStatisticsTask& task) { return task.heads * task.tokens; });
  const Grid by_row = {blocks_for(rows, kStatisticsThreads / kWarp), tasks.count};
  Steps steps(queue);
  if (rows > 0) steps.run(find_slots<T>, by_row, kStatisticsThreads, 0, tasks);
  steps.run(raise_exponents, {blocks_for(slots, kStatisticsThreads), tasks.count},
            kStatisticsThreads, 0, tasks);
  if (rows > 0) steps.run(add_tokens<T>, by_row, kStatisticsThreads, 0, tasks);
  return steps.error();
}

}  // namespace

Error code_statistics(const Tasks<CodeStatisticsTask>& tasks, const Queue& queue) {
  const int64_t slots =
      tasks.most([](const CodeStatisticsTask& task) { return task.heads * task.size; });
  if (slots == 0) return nullptr;
  return for_element_type(tasks.of[0].type,
                          [&]<typename T>(Element<T>) { return run<T>(tasks, slots, queue); });
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
