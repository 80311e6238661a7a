// The inner loops of binary_codes. Every instruction set gives the same bits; the C library's
// exponential takes no part.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

template <typename T>
struct BinaryCodesKernelOf {
  /// p = sigmoid(logit / temperature), to some units in the last place of a double; 0 and 1 are
  /// closer than 1e-300. NaN gives whatever.
  void (*chances)(const T* logits, double temperature, int64_t count, double* p);
  /// One token: the gradient of its bits, for that of its codes `grad` (2^bits) and its chances
  /// `p`. There must be room for 2^bits numbers in `below` and half as many in `rest`.
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
