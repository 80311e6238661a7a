// Inner loops of binary_codes. They do not call the C library's exponential, so every instruction
// set gives the same bits.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

constexpr int64_t kMostBits = 64;  // of a token

template <typename T>
struct BinaryCodesKernelOf {
  /// p = sigmoid(logit / temperature), to a few units in the last place of a double; beyond a
  /// quotient of +-700, to within 1e-300.
  void (*chances)(const T* logits, double temperature, int64_t count, double* p);
  /// One token: the gradient of its bits from the gradient `grad` of its codes (2^bits) and the
  /// probabilities `p`. `below` needs room for 2^bits numbers, `rest` for half as many.
  void (*fold)(const T* grad, const double* p, int64_t bits, double temperature, T* below, T* rest,
               T* to);
};

struct BinaryCodesKernel {
  BinaryCodesKernelOf<float> floats;
  BinaryCodesKernelOf<double> doubles;
  /// log 2 - H(sigmoid(logit)) in nats, and its slope; NaN for logits that are not finite.
  void (*divergence)(const float* logits, int64_t count, double* told, double* slopes);

  template <typename T>
  const auto& of() const {
    if constexpr (sizeof(T) == sizeof(double)) {
      return doubles;
    } else {
      return floats;
    }
  }
};

BinaryCodesKernel binary_codes_default();
BinaryCodesKernel binary_codes_avx2();
BinaryCodesKernel binary_codes_avx512();

inline BinaryCodesKernel binary_codes_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, binary_codes)();
}

}  // namespace torchvq::kernels
