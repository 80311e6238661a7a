// The exponents of a codebook's fixed point, computed as in src/ops/cpu/code_exponents.cpp.
#pragma once

#include <cstdint>

#include "kernels/cuda/element_type.h"
#include "kernels/cuda/tasks.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

struct CodeExponentsTask {
  const void* codebook = nullptr;  ///< (heads, size, dim)
  ElementType type = ElementType::kFloat;
  int64_t heads = 0, size = 0, dim = 0;
  int64_t* totals = nullptr;     ///< (heads, 2), scratch, zeros
  int32_t* exponents = nullptr;  ///< (heads, size), out
};

/// All codebooks have the same element type.
Error code_exponents(const Tasks<CodeExponentsTask>& tasks, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
