// Counts and sums of the tokens of each code, in fixed point as in
// src/kernels/cpu/fixed_point_sum.h: integers, so atomics in any order give the same bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/code_exponents.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/tasks.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

struct CodeStatisticsTask {
  const void* x = nullptr;  ///< (heads, tokens, dim)
  ElementType type = ElementType::kFloat;
  const int64_t* indices = nullptr;    ///< (heads, tokens); -1 is no code
  const bool* mask = nullptr;          ///< (heads, tokens) or null
  const int32_t* exponents = nullptr;  ///< (heads, size)
  /// The scratch of code_exponents() if it has not yet raised `exponents` to their mean, or null.
  const int64_t* totals = nullptr;
  int64_t heads = 0, tokens = 0, dim = 0, size = 0;
  int64_t* slots = nullptr;   ///< (heads, tokens), scratch
  int32_t* used = nullptr;    ///< (heads, size), zeros, out
  int64_t* counts = nullptr;  ///< (heads, size), zeros
  int64_t* sums = nullptr;    ///< (words, heads, size, dim), zeros; two words for float64
};

/// All tokens have the same element type.
Error code_statistics(const Tasks<CodeStatisticsTask>& tasks, const Queue& queue);

/// code_exponents() and code_statistics() of a learning step in three launches instead of five: codes
/// and tokens are read side by side. Task i of both lists is of the same codebook, in float or
/// double. `codes.exponents` is scratch, not yet raised to the mean.
Error step_statistics(const Tasks<CodeExponentsTask>& codes,
                      const Tasks<CodeStatisticsTask>& tokens, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
