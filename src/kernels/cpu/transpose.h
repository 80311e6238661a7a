// Transposes of matrices of 32-bit and 16-bit elements, which are copied as they are.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Columns that are transposed together; a task has a multiple of them.
inline constexpr int64_t kTransposedStrip = 64;

/// Transposes columns [begin, end) of a matrix (rows, columns) into rows [begin, end) of `to`
/// (columns, rows).
template <typename T>
using Transpose = void (*)(const T* from, int64_t rows, int64_t columns, int64_t begin, int64_t end,
                           T* to);

struct TransposeKernel {
  Transpose<float> words;
  Transpose<uint16_t> halves;
};

TransposeKernel transpose_default();
TransposeKernel transpose_avx2();
TransposeKernel transpose_avx512();

inline TransposeKernel transpose_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, transpose)();
}

}  // namespace torchvq::kernels
