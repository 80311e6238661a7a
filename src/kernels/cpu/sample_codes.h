// Draws a code for one token from K scores: the largest exp(lag / temperature) / -log(u), where a
// score lags behind the best one and u is the code's own random number. A cheap bound rules out
// nearly all codes; only the others take an exponential and a logarithm, so the draw is that of the
// formula, bit for bit.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

struct SampleCodesKernel {
  /// The largest score, or NaN if one of them is NaN. size >= 1.
  double (*best)(const double* scores, int64_t size);
  /// Code k cannot reach a chance c with c * hurdles[k] > 1. `position` numbers scores[0] among all
  /// draws. A hurdle that is not positive, or NaN, rules nothing out.
  void (*hurdles)(const double* scores, int64_t size, double best, double temperature, uint64_t key,
                  uint64_t position, double* hurdles);
};

SampleCodesKernel sample_codes_default();
SampleCodesKernel sample_codes_avx2();
SampleCodesKernel sample_codes_avx512();

inline SampleCodesKernel sample_codes_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, sample_codes)();
}

}  // namespace torchvq::kernels
