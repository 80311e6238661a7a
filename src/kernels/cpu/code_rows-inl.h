// Source of the kernels of code_rows.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Compiled without contraction, so that all sets give the same bits.
//
// Wider vectors do not make a float64 division faster per element. Where there is a fused
// multiply-add, the reciprocal of the size, which is common to a row, is refined to the correctly
// rounded quotient: Markstein, "Computation of elementary functions on the IBM RISC System/6000",
// 1990. With y = RN(1 / b) and q within one ulp of a / b, RN(q + y * RN(a - b * q)) is RN(a / b) as
// long as nothing over- or underflows; a first such step brings RN(a * y) within one ulp.
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

#include "kernels/cpu/code_rows.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr float kMostFloat = 3.402823466e+38F;
constexpr double kMostCode = 3.4028234663852886e+38;
// Range of divisors for which no step of the refinement leaves the normal numbers,
// whatever the float dividend.
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
  // Refinement would turn -0 into +0.
  return a == 0.0 ? first : exact;
#else
  (void)reciprocal;
  return a / divisor;
#endif
}

inline float within_range(float value) {
  return value < -kMostFloat ? -kMostFloat : value > kMostFloat ? kMostFloat : value;
}

// Minimum and maximum return their second operand if one is NaN, so NaN passes through.
#if defined(__AVX512F__)
inline HalfFloats within_range(HalfFloats value) {
  const __m256 least = _mm256_set1_ps(-kMostFloat), most = _mm256_set1_ps(kMostFloat);
  const __m256 above = _mm256_max_ps(least, reinterpret_cast<__m256>(value));
  return reinterpret_cast<HalfFloats>(_mm256_min_ps(most, above));
}

inline Doubles within_range(Doubles value) {
  constexpr __mmask8 kAllLanes = 0xFF;  // unmasked, GCC 12 warns about its own header
  const __m512d least = _mm512_set1_pd(-kMostCode), most = _mm512_set1_pd(kMostCode);
  const __m512d above = _mm512_maskz_max_pd(kAllLanes, least, reinterpret_cast<__m512d>(value));
  return reinterpret_cast<Doubles>(_mm512_maskz_min_pd(kAllLanes, most, above));
}
#elif defined(__AVX2__)
inline HalfFloats within_range(HalfFloats value) {
  const __m128 least = _mm_set1_ps(-kMostFloat), most = _mm_set1_ps(kMostFloat);
  const __m128 above = _mm_max_ps(least, reinterpret_cast<__m128>(value));
  return reinterpret_cast<HalfFloats>(_mm_min_ps(most, above));
}

inline Doubles within_range(Doubles value) {
  const __m256d least = _mm256_set1_pd(-kMostCode), most = _mm256_set1_pd(kMostCode);
  const __m256d above = _mm256_max_pd(least, reinterpret_cast<__m256d>(value));
  return reinterpret_cast<Doubles>(_mm256_min_pd(most, above));
}
#else
inline HalfFloats within_range(HalfFloats value) {
  value = value < -kMostFloat ? HalfFloats{} - kMostFloat : value;
  return value > kMostFloat ? HalfFloats{} + kMostFloat : value;
}

inline Doubles within_range(Doubles value) {
  value = value < -kMostCode ? Doubles{} - kMostCode : value;
  return value > kMostCode ? Doubles{} + kMostCode : value;
}
#endif

inline float narrow(double value) {
  return (float)(value < -kMostCode ? -kMostCode : value > kMostCode ? kMostCode : value);
}

inline HalfFloats narrow(Doubles value) {
  return __builtin_convertvector(within_range(value), HalfFloats);
}

template <typename Number>
inline Number towards(Number from, Number share, Number target) {
  return from + share * (target - from);
}

/// towards() for a target of zero: the same bits with one operation less.
template <typename Number>
inline Number shrunk(Number from, Number share) {
  return from - share * from;
}

/// Stands for the sums of a code without tokens, all of which are zero.
struct NoSums {
  Doubles next(int64_t, Doubles average, Doubles weight) const { return shrunk(average, weight); }
  double next(int64_t, double average, double weight) const { return shrunk(average, weight); }
};

struct Sums {
  const double* values;

  Doubles next(int64_t d, Doubles average, Doubles weight) const {
    return towards(average, weight, load<Doubles>(values + d));
  }
  double next(int64_t d, double average, double weight) const {
    return towards(average, weight, values[d]);
  }
};

template <typename Values>
void move_average(const Values& sums, double weight, int64_t dim, float* average) {
  const int64_t wide = dim / kHalfLanes * kHalfLanes;
  const Doubles weights = Doubles{} + weight;
  for (int64_t d = 0; d < wide; d += kHalfLanes) {
    const Doubles next = sums.next(d, widen(average + d), weights);
    store(average + d, within_range(__builtin_convertvector(next, HalfFloats)));
  }
  for (int64_t d = wide; d < dim; ++d) {
    average[d] = within_range((float)sums.next(d, (double)average[d], weight));
  }
}

template <typename Values>
void move_row(const Values& sums, double weight, double size, int64_t dim, float* average,
              float* code) {
  if (code == nullptr) {
    move_average(sums, weight, dim, average);
    return;
  }
  const bool plain = !(size > kLeastDivisor && size < kMostDivisor);
  const int64_t wide = plain ? 0 : dim / kHalfLanes * kHalfLanes;
  const Doubles weights = Doubles{} + weight, divisor = Doubles{} + size;
  const Doubles reciprocal = Doubles{} + 1.0 / size;
  for (int64_t d = 0; d < wide; d += kHalfLanes) {
    const Doubles exact = sums.next(d, widen(average + d), weights);
    const HalfFloats next = within_range(__builtin_convertvector(exact, HalfFloats));
    store(average + d, next);
    store(code + d, narrow(quotient(__builtin_convertvector(next, Doubles), divisor, reciprocal)));
  }
  for (int64_t d = wide; d < dim; ++d) {
    average[d] = within_range((float)sums.next(d, (double)average[d], weight));
    code[d] = narrow((double)average[d] / size);
  }
}

void decay(double weight, double size, int64_t dim, float* average, float* code) {
  move_row(NoSums{}, weight, size, dim, average, code);
}

void move(const double* sums, double weight, double size, int64_t dim, float* average,
          float* code) {
  move_row(Sums{sums}, weight, size, dim, average, code);
}

void draw(const float* target, double step, int64_t dim, float* code) {
  const int64_t wide = dim / kHalfLanes * kHalfLanes;
  const Doubles steps = Doubles{} + step;
  for (int64_t d = 0; d < wide; d += kHalfLanes) {
    store(code + d, narrow(towards(widen(code + d), steps, widen(target + d))));
  }
  for (int64_t d = wide; d < dim; ++d) {
    code[d] = narrow(towards((double)code[d], step, (double)target[d]));
  }
}

int32_t largest_bits(const float* row, int64_t dim) {
  constexpr int32_t kMagnitude = 0x7FFFFFFF;
  const int64_t wide = dim / kLanes * kLanes;
  Ints most{};
  for (int64_t d = 0; d < wide; d += kLanes) {
    const Ints bits = load<Ints>(row + d) & kMagnitude;
    most = bits > most ? bits : most;
  }
  int32_t largest = 0;
  for (int l = 0; l < kLanes; ++l) largest = most[l] > largest ? most[l] : largest;
  for (int64_t d = wide; d < dim; ++d) {
    int32_t bits;
    memcpy(&bits, row + d, sizeof bits);
    bits &= kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

}  // namespace

CodeRowsKernel TORCHVQ_LEVEL_NAME(code_rows)() { return {decay, move, draw, largest_bits}; }

}  // namespace torchvq::kernels
