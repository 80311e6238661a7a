// Source of the kernels of code_rows.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Compiled without contraction, so that all sets give the same bits.
//
// A division of float64 takes as long per element with any width of vectors. Where there is a fused
// multiply-add, the reciprocal of the size, which a row has in common, is refined to the very same
// quotient: Markstein, "Computation of elementary functions on the IBM RISC System/6000", 1990.
// With y = RN(1 / b) and q within one ulp of a / b, RN(q + y * RN(a - b * q)) is RN(a / b), where
// nothing over- or underflows; a first such step brings RN(a * y) within one ulp.
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

#include "kernels/cpu/code_rows.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr float kMostFloat = 3.402823466e+38F;
constexpr double kMostCode = 3.4028234663852886e+38;
// Sizes between which no step of the refinement leaves the normal numbers, whatever float it
// divides.
constexpr double kLeastDivisor = 1e-100;
constexpr double kMostDivisor = 1e100;

#if defined(__AVX512F__)
inline Doubles fused(Doubles a, Doubles b, Doubles c) {
  return reinterpret_cast<Doubles>(_mm512_fmadd_pd(
      reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
}
#define TORCHVQ_HAS_FUSED
#elif defined(__FMA__)
inline Doubles fused(Doubles a, Doubles b, Doubles c) {
  return reinterpret_cast<Doubles>(_mm256_fmadd_pd(
      reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
}
#define TORCHVQ_HAS_FUSED
#endif

inline Doubles quotient(Doubles a, Doubles divisor, Doubles reciprocal) {
#if defined(TORCHVQ_HAS_FUSED)
  const Doubles first = a * reciprocal;
  const Doubles second = fused(fused(-divisor, first, a), reciprocal, first);
  const Doubles exact = fused(fused(-divisor, second, a), reciprocal, second);
  // The refinement of a negative zero is a positive one.
  return a == 0.0 ? first : exact;
#else
  (void)reciprocal;
  return a / divisor;
#endif
}

inline float within_range(float value) {
  return value < -kMostFloat ? -kMostFloat : value > kMostFloat ? kMostFloat : value;
}

inline HalfFloats within_range(HalfFloats value) {
  value = value < -kMostFloat ? HalfFloats{} - kMostFloat : value;
  return value > kMostFloat ? HalfFloats{} + kMostFloat : value;
}

inline float narrow(double value) {
  return (float)(value < -kMostCode ? -kMostCode : value > kMostCode ? kMostCode : value);
}

inline HalfFloats narrow(Doubles value) {
  value = value < -kMostCode ? Doubles{} - kMostCode : value;
  value = value > kMostCode ? Doubles{} + kMostCode : value;
  return __builtin_convertvector(value, HalfFloats);
}

template <typename Number>
inline Number towards(Number from, Number share, Number target) {
  return from + share * (target - from);
}

constexpr int64_t kWidth = kLanes / 2;

void decay(double weight, double size, int64_t dim, float* average, float* code) {
  const bool plain = !(size > kLeastDivisor && size < kMostDivisor);
  const int64_t wide = plain && code != nullptr ? 0 : dim / kWidth * kWidth;
  const Doubles weights = Doubles{} + weight, divisor = Doubles{} + size;
  const Doubles reciprocal = Doubles{} + 1.0 / size;
  for (int64_t d = 0; d < wide; d += kWidth) {
    const HalfFloats next = within_range(
        __builtin_convertvector(towards(widen(average + d), weights, Doubles{}), HalfFloats));
    store(average + d, next);
    if (code == nullptr) continue;
    const Doubles exact = __builtin_convertvector(next, Doubles);
    store(code + d, narrow(quotient(exact, divisor, reciprocal)));
  }
  for (int64_t d = wide; d < dim; ++d) {
    average[d] = within_range((float)towards((double)average[d], weight, 0.0));
    if (code != nullptr) code[d] = narrow((double)average[d] / size);
  }
}

void draw(const float* target, double step, int64_t dim, float* code) {
  const int64_t wide = dim / kWidth * kWidth;
  const Doubles steps = Doubles{} + step;
  for (int64_t d = 0; d < wide; d += kWidth) {
    store(code + d, narrow(towards(widen(code + d), steps, widen(target + d))));
  }
  for (int64_t d = wide; d < dim; ++d) {
    code[d] = narrow(towards((double)code[d], step, (double)target[d]));
  }
}

}  // namespace

CodeRowsKernel TORCHVQ_LEVEL_NAME(code_rows)() { return {decay, draw}; }

}  // namespace torchvq::kernels
