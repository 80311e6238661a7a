#include "kernels/cuda/code_statistics.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements-inl.h"
#include "kernels/cuda/magnitude-inl.h"
#include "kernels/exponents.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kStatisticsThreads = 256;
using Word = unsigned long long;  // what atomics know; wraps around like int64_t

/// A warp to a row: its slot, or -1 where it does not count; what it adds to count and exponent.
template <typename T>
__global__ void __launch_bounds__(kStatisticsThreads) find_slots(CodeStatisticsTask task) {
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

/// `used` holds the largest exponent of each code's tokens, or less than any.
__global__ void __launch_bounds__(kStatisticsThreads) raise_exponents(CodeStatisticsTask task) {
  const int64_t slots = task.heads * task.size;
  for (int64_t slot = grid_thread(); slot < slots; slot += grid_threads()) {
    const int32_t largest = max(task.used[slot], kMinExponent);
    const int32_t given = clamp_exponent(task.exponents[slot]);
    task.used[slot] = largest > given + kHeadroomBits ? largest : given;
  }
}

template <typename T>
__global__ void __launch_bounds__(kStatisticsThreads) add_tokens(CodeStatisticsTask task) {
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
Error run(const CodeStatisticsTask& task, const Queue& queue) {
  const int64_t rows = task.heads * task.tokens, slots = task.heads * task.size;
  // 0x80808080 is below every exponent.
  if (const auto error = fill_bytes(queue, task.used, 0x80, sizeof(int32_t) * slots)) return error;
  const unsigned warps = kStatisticsThreads / kWarp;
  if (rows > 0) {
    const auto error =
        launch(find_slots<T>, queue, blocks_for(rows, warps), kStatisticsThreads, 0, task);
    if (error) return error;
  }
  if (const auto error = launch(raise_exponents, queue, blocks_for(slots, kStatisticsThreads),
                                kStatisticsThreads, 0, task))
    return error;
  if (rows == 0) return nullptr;
  return launch(add_tokens<T>, queue, blocks_for(rows, warps), kStatisticsThreads, 0, task);
}

}  // namespace

Error code_statistics(const CodeStatisticsTask& task, const Queue& queue) {
  if (task.heads * task.size == 0) return nullptr;
  return for_element_type(task.type, [&]<typename T>(Element<T>) { return run<T>(task, queue); });
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
