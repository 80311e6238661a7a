// The exponents of codes, for code_exponents.cu and for the learning step in code_statistics.cu.
#pragma once

#include <climits>

#include "kernels/cuda/code_exponents.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/magnitude-inl.h"
#include "kernels/exponents.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

/// One warp per code: its own exponent, INT_MIN if it has none, and its contribution to the mean.
template <typename T>
__device__ void find_own_exponents(const CodeExponentsTask& task) {
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

/// An exponent, raised to at least the mean of its head, rounded down.
__device__ inline int32_t raised_to_mean(int32_t exponent, const int64_t* totals) {
  const int64_t sum = totals[0], count = totals[1] > 0 ? totals[1] : 1;
  const int64_t quotient = sum / count;
  const bool up = sum < 0 && quotient * count != sum;  // towards zero
  return max(exponent, static_cast<int32_t>(quotient - up));
}

}  // namespace
}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
