// Counts and sums of the tokens of each code, in fixed point as in
// src/kernels/cpu/fixed_point_sum.h: integers, so atomics in any order give the same bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/element_type.h"
#include "kernels/cuda/tasks.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int32_t kNoExponent = INT32_MIN;  ///< smaller than any exponent

struct CodeStatisticsTask {
  const void* x = nullptr;  ///< (heads, tokens, dim)
  ElementType type = ElementType::kFloat;
  const int64_t* indices = nullptr;    ///< (heads, tokens); -1 is no code
  const bool* mask = nullptr;          ///< (heads, tokens) or null
  const int32_t* exponents = nullptr;  ///< (heads, size)
  int64_t heads = 0, tokens = 0, dim = 0, size = 0;
  int64_t* slots = nullptr;   ///< (heads, tokens), scratch
  int32_t* used = nullptr;    ///< (heads, size), kNoExponent, out
  int64_t* counts = nullptr;  ///< (heads, size), zeros
  int64_t* sums = nullptr;    ///< (words, heads, size, dim), zeros; two words for float64
};

/// All tokens have the same element type.
Error code_statistics(const Tasks<CodeStatisticsTask>& tasks, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
