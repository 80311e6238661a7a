// The inner loops of sign_entropy in float32. Every instruction set gives the same bits: lanes are
// independent, sums run in index order over fixed blocks, and nothing is contracted.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Sums over k are computed in blocks of this length, each from zero, so that long
/// sums keep their precision.
inline constexpr int64_t kProductBlock = 256;

/// Bernoulli distributions of bits, `count` of each.
struct SignBits {
  float* on;       ///< probability that the bit is set
  float* off;      ///< 1 - on, without cancellation
  float* entropy;  ///< in nats
  float* slope;    ///< d entropy / d logit
};

/// to (rows, columns) += left^T right: left is (depth, rows) with any strides, right (depth,
/// columns) and `to` have contiguous rows.
struct SignProduct {
  const float* left;
  int64_t left_depth_stride, left_row_stride;
  const float* right;
  int64_t right_stride;
  float* to;
  int64_t to_stride;
  int64_t depth, rows, columns;
};

struct SignEntropyKernel {
  /// For logits z = gain * x. Beyond |z| = 87 a bit counts as certain.
  void (*bits)(const float* x, float gain, int64_t count, const SignBits& to);
  /// Probabilities of all values of the last k bits, for k = 0 ... count, one after the other:
  /// those for k are at pyramid[2^k ... 2^(k+1)). The first bit is the most significant one.
  void (*pyramid)(const float* on, const float* off, int64_t count, float* pyramid);
  void (*product)(const SignProduct& product);
  /// to[i] = log(max(scale * from[i], smallest normal number)).
  void (*logarithms)(const float* from, float scale, int64_t count, float* to);
  /// Gradient of the logits of `count` bits: of the expectation of `values` (2^count, overwritten)
  /// under the distribution that the pyramid was made from, times `weight`.
  void (*fold)(const float* on, const float* off, const float* pyramid, int64_t count, float weight,
               float* values, float* to);
};

SignEntropyKernel sign_entropy_default();
SignEntropyKernel sign_entropy_avx2();
SignEntropyKernel sign_entropy_avx512();

inline SignEntropyKernel sign_entropy_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, sign_entropy)();
}

}  // namespace torchvq::kernels
