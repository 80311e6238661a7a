// The search of latent_quantize: the nearest value of a level. Every instruction set gives the same
// bits.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Numbers are searched in groups of this many.
inline constexpr int64_t kLatentGroup = 8;

struct LatentQuantizeKernel {
  /// For each of `count` numbers, a multiple of kLatentGroup, the place of the nearest of `values`:
  /// the first of several that are equally near, and 0 for NaN.
  void (*nearest)(const double* values, int64_t size, const double* numbers, int64_t count,
                  int64_t* places);
};

LatentQuantizeKernel latent_quantize_default();
LatentQuantizeKernel latent_quantize_avx2();
LatentQuantizeKernel latent_quantize_avx512();

inline LatentQuantizeKernel latent_quantize_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, latent_quantize)();
}

}  // namespace torchvq::kernels
