// Source of the kernels of binary_codes.h; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Compiled without contraction, so that all sets give the same bits.
#include "kernels/cpu/binary_codes.h"
#include "kernels/cpu/doubles-inl.h"

namespace torchvq::kernels {
namespace {

/// One partial sum per remainder of 8, the same for every instruction set.
constexpr int64_t kFoldLanes = 8;

/// log(1 + o) for o in [0, 1]: 2 atanh(o / (2 + o)).
inline Doubles log_of_one_plus(Doubles o) {
  const Doubles s = o / (2.0 + o), square = s * s;
  Doubles series = wide_splat(1.0 / 33.0);
#pragma GCC unroll 16
  for (int k = 31; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return 2.0 * s * series;
}

inline Doubles magnitude(Doubles v) {
  return reinterpret_cast<Doubles>(reinterpret_cast<Longs>(v) & 0x7FFFFFFFFFFFFFFFLL);
}

/// exp(-|z|): the odds of the less likely value of a bit.
inline Doubles odds_of(Doubles z) {
  const Doubles size = magnitude(z);
  return exp_of_minus(size < kLargestExponent ? size : wide_splat(kLargestExponent));
}

/// Calls body(first, values, wanted) for vectors of logits widened to float64; the last
/// vector is padded with zeros.
template <typename T, typename Body>
inline void over_logits(const T* logits, int64_t count, const Body& body) {
  over_vectors(
      count, [&](int64_t at, int64_t wanted) { body(at, load_some(logits + at, wanted), wanted); });
}

template <typename T>
void chances(const T* logits, double temperature, int64_t count, double* p) {
  const bool divides = temperature != 1;
  over_logits(logits, count, [&](int64_t at, Doubles logit, int64_t wanted) {
    const Doubles odds = odds_of(divides ? logit / temperature : logit),
                  likely = 1.0 / (1.0 + odds);
    const Doubles found = logit > 0.0 ? likely : odds * likely;
    store_some(p + at, logit == logit ? found : logit, wanted);
  });
}

void divergence(const float* logits, int64_t count, double* told, double* slopes) {
  over_logits(logits, count, [&](int64_t at, Doubles logit, int64_t wanted) {
    const Doubles odds = odds_of(logit), likely = 1.0 / (1.0 + odds), unlikely = odds * likely;
    const Doubles entropy = log_of_one_plus(odds) + magnitude(logit) * unlikely;
    const Doubles nothing = logit - logit;  // NaN where the logit is not finite
    store_some(told + at, 0.69314718055994531 - entropy + nothing, wanted);
    store_some(slopes + at, logit * unlikely * likely, wanted);
  });
}

inline Doubles widened(Doubles v) { return v; }
inline Doubles widened(HalfFloats v) {
#if defined(__AVX512F__)
  // GCC 12 converts vectors of 512 bits in halves, and warns of the function without a mask.
  return reinterpret_cast<Doubles>(_mm512_maskz_cvtps_pd(0xFF, reinterpret_cast<__m256>(v)));
#else
  return __builtin_convertvector(v, Doubles);
#endif
}

/// Returns sum of weight[c] * (high[c] - low[c]), and sets
/// folded[c] = low[c] + p * (high[c] - low[c]); `folded` may be `low`. `count` is a power of 2. The
/// sum has a fixed order: from kFoldLanes terms on partial sums by index modulo 8, then these in
/// pairs.
template <typename T>
inline double fold_bit(const T* low, const T* high, const T* weight, T p, int64_t count,
                       T* folded) {
  if (count < kFoldLanes) {
    double total = 0;
    for (int64_t c = 0; c < count; ++c) {
      const T rise = high[c] - low[c];
      total += static_cast<double>(weight[c] * rise);
      folded[c] = low[c] + p * rise;
    }
    return total;
  }
  using Part = Vector<T, kHalfLanes>;
  constexpr int64_t kParts = kFoldLanes / kHalfLanes;
  Doubles lanes[kParts] = {};
  for (int64_t c = 0; c < count; c += kFoldLanes) {
#pragma GCC unroll 4
    for (int64_t part = 0; part < kParts; ++part) {
      const int64_t at = c + part * kHalfLanes;
      const Part under = load<Part>(low + at), rise = load<Part>(high + at) - under;
      lanes[part] += widened(load<Part>(weight + at) * rise);
      store(folded + at, under + p * rise);
    }
  }
  Vector<double, kFoldLanes> sums;
  memcpy(&sums, lanes, sizeof sums);
  return sum_lanes<double, kFoldLanes>(sums);
}

/// Extends the probabilities of the values of the lower bits by one bit.
template <typename T>
inline void extend(const T* known, T p, int64_t count, T* next) {
  for (int64_t c = 0; c < count; ++c) {
    next[c] = known[c] * (1 - p);
    next[count + c] = known[c] * p;
  }
}

template <typename T>
void fold(const T* grad, const double* p, int64_t bits, double temperature, T* below, T* rest,
          T* to) {
  // below[2^h + c] is the probability that bits 0 to h - 1 have the value c.
  below[1] = 1;
  for (int64_t h = 0; h + 1 < bits; ++h) {
    const int64_t count = int64_t{1} << h;
    extend(below + count, static_cast<T>(p[h]), count, below + 2 * count);
  }
  const T* values = grad;
  double slopes[kMostBits];
  for (int64_t h = bits - 1; h >= 0; --h) {
    const int64_t half = int64_t{1} << h;
    slopes[h] = fold_bit(values, values + half, below + half, static_cast<T>(p[h]), half, rest);
    values = rest;
  }
  over_vectors(bits, [&](int64_t at, int64_t wanted) {
    const Doubles chance = load_some(p + at, wanted);
    const Doubles slope = load_some(slopes + at, wanted) * chance * (1.0 - chance) / temperature;
    store_some(slopes + at, slope, wanted);
  });
  for (int64_t h = 0; h < bits; ++h) to[h] = static_cast<T>(slopes[h]);
}

}  // namespace

BinaryCodesKernel TORCHVQ_LEVEL_NAME(binary_codes)() {
  BinaryCodesKernel table;
  table.floats.chances = chances<float>;
  table.floats.fold = fold<float>;
  table.doubles.chances = chances<double>;
  table.doubles.fold = fold<double>;
  table.divergence = divergence;
  return table;
}

}  // namespace torchvq::kernels
