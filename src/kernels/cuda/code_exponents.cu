#include "kernels/cuda/code_exponents.h"

#include <climits>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements-inl.h"
#include "kernels/cuda/magnitude-inl.h"
#include "kernels/cuda/steps-inl.h"
#include "kernels/exponents.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kExponentThreads = 256;

/// One warp per code: its own exponent, INT_MIN if it has none, and its contribution to the mean.
template <typename T>
__global__ void __launch_bounds__(kExponentThreads) find_exponents(Tasks<CodeExponentsTask> tasks) {
  const CodeExponentsTask& task = tasks.of[blockIdx.y];
  using Word = unsigned long long;
  const T* codebook = static_cast<const T*>(task.codebook);
  const int64_t codes = task.heads * task.size;
  for (int64_t code = grid_warp(); code < codes; code += grid_warps()) {
    const double magnitude = largest_magnitude(codebook + code * task.dim, task.dim);
    if (lane_of_warp() != 0) continue;
    const bool counts = isfinite(magnitude) && magnitude > 0;
    const int32_t exponent = counts ? exponent_of(magnitude) : INT_MIN;
    task.exponents[code] = exponent;
    if (!counts) continue;
    auto* totals = reinterpret_cast<Word*>(task.totals + code / task.size * 2);
    atomicAdd(totals, static_cast<Word>(static_cast<int64_t>(exponent)));
    atomicAdd(totals + 1, Word{1});
  }
}

/// Raises exponents to at least the mean of the head, rounded down.
__global__ void __launch_bounds__(kExponentThreads) raise_to_mean(Tasks<CodeExponentsTask> tasks) {
  const CodeExponentsTask& task = tasks.of[blockIdx.y];
  const int64_t codes = task.heads * task.size;
  for (int64_t code = grid_thread(); code < codes; code += grid_threads()) {
    const int64_t* totals = task.totals + code / task.size * 2;
    const int64_t sum = totals[0], count = totals[1] > 0 ? totals[1] : 1;
    const int64_t mean = sum / count - (sum % count != 0 && sum < 0);
    task.exponents[code] = max(task.exponents[code], static_cast<int32_t>(mean));
  }
}

template <typename T>
Error run(const Tasks<CodeExponentsTask>& tasks, int64_t codes, const Queue& queue) {
  Steps steps(queue);
  steps.run(find_exponents<T>, {blocks_for(codes, kExponentThreads / kWarp), tasks.count},
            kExponentThreads, 0, tasks);
  steps.run(raise_to_mean, {blocks_for(codes, kExponentThreads), tasks.count}, kExponentThreads, 0,
            tasks);
  return steps.error();
}

}  // namespace

Error code_exponents(const Tasks<CodeExponentsTask>& tasks, const Queue& queue) {
  const int64_t codes =
      tasks.most([](const CodeExponentsTask& task) { return task.heads * task.size; });
  if (codes == 0) return nullptr;
  return for_element_type(tasks.of[0].type,
                          [&]<typename T>(Element<T>) { return run<T>(tasks, codes, queue); });
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
