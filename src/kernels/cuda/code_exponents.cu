#include "kernels/cuda/code_exponents.h"

#include <climits>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements-inl.h"
#include "kernels/cuda/magnitude-inl.h"
#include "kernels/exponents.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kExponentThreads = 256;

/// A warp to a code: its own exponent, INT_MIN where it has none, and what it adds to the mean.
template <typename T>
__global__ void __launch_bounds__(kExponentThreads) find_exponents(CodeExponentsTask task) {
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

/// At least the mean of the head, rounded down.
__global__ void __launch_bounds__(kExponentThreads) raise_to_mean(CodeExponentsTask task) {
  const int64_t codes = task.heads * task.size;
  for (int64_t code = grid_thread(); code < codes; code += grid_threads()) {
    const int64_t* totals = task.totals + code / task.size * 2;
    const int64_t sum = totals[0], count = totals[1] > 0 ? totals[1] : 1;
    const int64_t mean = sum / count - (sum % count != 0 && sum < 0);
    task.exponents[code] = max(task.exponents[code], static_cast<int32_t>(mean));
  }
}

template <typename T>
Error run(const CodeExponentsTask& task, const Queue& queue) {
  const int64_t codes = task.heads * task.size;
  const size_t bytes = sizeof(int64_t) * 2 * static_cast<size_t>(task.heads);
  if (const auto error = fill_bytes(queue, task.totals, 0, bytes)) return error;
  if (const auto error =
          launch(find_exponents<T>, queue, blocks_for(codes, kExponentThreads / kWarp),
                 kExponentThreads, 0, task))
    return error;
  return launch(raise_to_mean, queue, blocks_for(codes, kExponentThreads), kExponentThreads, 0,
                task);
}

}  // namespace

Error code_exponents(const CodeExponentsTask& task, const Queue& queue) {
  if (task.heads * task.size == 0) return nullptr;
  return for_element_type(task.type, [&]<typename T>(Element<T>) { return run<T>(task, queue); });
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
