// The update that a step applies to every code, with or without tokens; it takes most of the
// step's time when tokens are few. State is float32; averages and codes are computed in float64,
// each element is rounded once and kept in the range of float: the same bits as
// codebook_average.h and unused_codes.h.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

struct CodeRowsKernel {
  /// average += weight * (0 - average); code = average / size, unless `code` is null.
  void (*decay)(double weight, double size, int64_t dim, float* average, float* code);
  /// The same with tokens: average += weight * (sums - average).
  void (*move)(const double* sums, double weight, double size, int64_t dim, float* average,
               float* code);
  /// code += step * (target - code).
  void (*draw)(const float* target, double step, int64_t dim, float* code);
  /// The largest magnitude of a row as the bits of a float; these order like the magnitudes.
  int32_t (*largest_bits)(const float* row, int64_t dim);
};

CodeRowsKernel code_rows_default();
CodeRowsKernel code_rows_avx2();
CodeRowsKernel code_rows_avx512();

inline CodeRowsKernel code_rows_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, code_rows)();
}

}  // namespace torchvq::kernels
