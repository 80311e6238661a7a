// Inner loops of scalar_quantize in float32: levels and codes of features, and the gradient. Every
// instruction set gives the same bits.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Parameters of the features repeat every D values. A pattern stores them for D * kScalarRepeat
/// values, so that a vector that starts at any multiple of its length finds the parameters of
/// its features contiguously.
inline constexpr int64_t kScalarRepeat = 16;

/// Patterns, each of `period` = D * kScalarRepeat numbers.
struct ScalarPatterns {
  int64_t period;
  const float* changes;  ///< (change_count, period): where levels change, infinity beyond the last
  int64_t change_count;
  float factor;  ///< code = (level * factor - centre) / divisor
  const float* centre;
  const float* divisor;
};

struct ScalarSlopes {
  int64_t period;
  const float* gain;
  const float* shift;
  bool tanh;
};

/// A sequence of levels, each of which quantizes the residual of the ones before.
struct ScalarStack {
  int64_t quantizers;
  const float* scales;  ///< (quantizers, period)
};

struct ScalarQuantizeKernel {
  /// Levels and codes of `count` values, the first of which is the first feature of a row. A value
  /// that is not finite has level -1 and code NaN.
  void (*quantize)(const ScalarPatterns& patterns, const float* x, int64_t count, float* codes,
                   int32_t* levels);
  /// to = grad * gain * b'(x + shift), b being tanh or the clamp to [-1, 1].
  void (*slope)(const ScalarSlopes& slopes, const float* grad, const float* x, int64_t count,
                float* to);
  /// The sum of the codes of all levels, and their level numbers (quantizers, count): level q
  /// quantizes residual / scale[q], and its code times the scale is added to the sum and
  /// subtracted from the residual.
  void (*walk)(const ScalarPatterns& patterns, const ScalarStack& stack, const float* x,
               int64_t count, float* total, int32_t* levels);
  /// to = grad * (1 - (1 - g_0) (1 - g_1) ...), where g_q is the slope of the
  /// bound at residual / scale[q].
  void (*walk_slope)(const ScalarPatterns& patterns, const ScalarStack& stack, bool tanh,
                     const float* grad, const float* x, int64_t count, float* to);
};

ScalarQuantizeKernel scalar_quantize_default();
ScalarQuantizeKernel scalar_quantize_avx2();
ScalarQuantizeKernel scalar_quantize_avx512();

inline ScalarQuantizeKernel scalar_quantize_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, scalar_quantize)();
}

}  // namespace torchvq::kernels
