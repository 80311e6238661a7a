// What a step does to codes without tokens, the most of them where tokens are few. float32 state;
// in float64, each element rounded once and kept in the range of float: the bits of
// codebook_average.h and unused_codes.h.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

struct CodeRowsKernel {
  /// average += weight * (0 - average); code = average / size, unless `code` is null.
  void (*decay)(double weight, double size, int64_t dim, float* average, float* code);
  /// code += step * (target - code).
  void (*draw)(const float* target, double step, int64_t dim, float* code);
};

CodeRowsKernel code_rows_default();
CodeRowsKernel code_rows_avx2();
CodeRowsKernel code_rows_avx512();

inline CodeRowsKernel code_rows_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, code_rows)();
}

}  // namespace torchvq::kernels
