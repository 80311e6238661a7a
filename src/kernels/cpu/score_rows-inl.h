// Source of the kernels of score_rows.h; included by one file per instruction set, which defines TORCHVQ_LEVEL_NAME.
// Compiled without contraction, so that all sets give the same bits.
#include "kernels/cpu/doubles-inl.h"
#include "kernels/cpu/score_rows.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace torchvq::kernels {
namespace {

/// Partial sums, one per remainder of 8, the same for every instruction set.
constexpr int64_t kSums = 8, kSumVectors = kSums / kHalfLanes;

inline Doubles root(Doubles v) {
#if defined(__AVX512F__)
  constexpr __mmask8 kAllLanes = 0xFF;  // unmasked, GCC 12 warns about its own header
  return reinterpret_cast<Doubles>(_mm512_maskz_sqrt_pd(kAllLanes, reinterpret_cast<__m512d>(v)));
#else
  for (int lane = 0; lane < kHalfLanes; ++lane) v[lane] = sqrt(v[lane]);
  return v;
#endif
}

/// Sum of values(first, count) over a row. Lanes beyond the row have to be zero.
template <typename Values>
inline double sum_of(int64_t count, const Values& values) {
  Doubles sums[kSumVectors] = {};
  int64_t part = 0;
  over_vectors(count, [&](int64_t at, int64_t wanted) {
    sums[part] += values(at, wanted);
    part = part + 1 == kSumVectors ? 0 : part + 1;
  });
  double lanes[kSums];
  memcpy(lanes, sums, sizeof lanes);
  for (int64_t half = kSums / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

template <typename T>
void add(const T* row, int64_t count, double* totals) {
  over_vectors(count, [&](int64_t at, int64_t wanted) {
    store_some(totals + at, load_some(totals + at, wanted) + load_some(row + at, wanted), wanted);
  });
}

double subtract(const float* row, const double* centre, int64_t count, double* to) {
  return sum_of(count, [&](int64_t at, int64_t wanted) {
    const Doubles rest = load_some(row + at, wanted) - load_some(centre + at, wanted);
    store_some(to + at, rest, wanted);
    return rest * rest;
  });
}

void negative_distances(const SquaredNorms& norms, int64_t count, double* products) {
  const Doubles of_token = wide_splat(norms.of_token), noise = wide_splat(norms.noise);
  over_vectors(count, [&](int64_t at, int64_t wanted) {
    const Doubles lengths = load_some(norms.of_codes + at, wanted) + of_token;
    const Doubles square = lengths - 2.0 * load_some(products + at, wanted);
    store_some(products + at, -root(square <= lengths * noise ? Doubles{} : square), wanted);
  });
}

void divide(const double* scores, int64_t count, double* grad) {
  over_vectors(count, [&](int64_t at, int64_t wanted) {
    const Doubles score = load_some(scores + at, wanted), slope = load_some(grad + at, wanted);
    store_some(grad + at, score == 0.0 ? Doubles{} : slope / score, wanted);
  });
}

double largest_of(const double* scores, int64_t count) {
  Doubles most = wide_splat(-HUGE_VAL);
  int64_t at = 0;
  for (; at + kHalfLanes <= count; at += kHalfLanes) {
    const Doubles score = load<Doubles>(scores + at);
    most = score > most ? score : most;
  }
  double largest = -HUGE_VAL;
  for (int64_t lane = 0; lane < kHalfLanes; ++lane) {
    largest = most[lane] > largest ? most[lane] : largest;
  }
  for (; at < count; ++at) {
    largest = scores[at] > largest ? scores[at] : largest;
  }
  return largest;
}

struct Exponentials {
  double total;
  double nothing;  ///< 0, or NaN if a score is not finite
};

/// e = exp(temperature * (score - largest)), stored unless `e` is null.
Exponentials exponentials(const double* scores, double temperature, double largest, int64_t count,
                          double* e) {
  const Doubles most = wide_splat(largest), slope = wide_splat(temperature);
  const Doubles limit = wide_splat(kLargestExponent);
  Doubles nothing = Doubles{};
  const double total = sum_of(count, [&](int64_t at, int64_t wanted) {
    const Doubles score = load_some(scores + at, wanted);
    nothing += score * 0.0;
    const Doubles below = (most - score) * slope;
    Doubles own = exp_of_minus(below < limit ? below : limit);
    if (wanted < kHalfLanes) {
      for (int64_t lane = wanted; lane < kHalfLanes; ++lane) own[lane] = 0;
    }
    if (e != nullptr) store_some(e + at, own, wanted);
    return own;
  });
  return {total, sum_lanes<double, kHalfLanes>(nothing)};
}

void scale(double by, int64_t count, double* values) {
  const Doubles factor = wide_splat(by);
  over_vectors(count, [&](int64_t at, int64_t wanted) {
    store_some(values + at, load_some(values + at, wanted) * factor, wanted);
  });
}

void probabilities(const double* scores, double temperature, int64_t count, double* p) {
  const auto [total, nothing] =
      exponentials(scores, temperature, largest_of(scores, count), count, p);
  scale(1.0 / total + nothing, count, p);
}

double cross_entropy(const double* scores, int64_t target, double factor, int64_t count,
                     double* slopes) {
  const double largest = largest_of(scores, count);
  const auto [total, nothing] = exponentials(scores, 1.0, largest, count, slopes);
  if (slopes != nullptr) {
    scale(factor / total + nothing, count, slopes);
    slopes[target] -= factor;
  }
  return log(total) + (largest - scores[target]) + nothing;
}

void diversity_slopes(const double* log_mean, double factor, int64_t count, double* p) {
  const Doubles mean = wide_splat(sum_of(count, [&](int64_t at, int64_t wanted) {
    return load_some(p + at, wanted) * load_some(log_mean + at, wanted);
  }));
  const Doubles weight = wide_splat(factor);
  over_vectors(count, [&](int64_t at, int64_t wanted) {
    const Doubles distance = load_some(log_mean + at, wanted) - mean;
    store_some(p + at, load_some(p + at, wanted) * distance * weight, wanted);
  });
}

}  // namespace

ScoreRowsKernel TORCHVQ_LEVEL_NAME(score_rows)() {
  return {add<float>,    subtract,    negative_distances, divide,
          probabilities, add<double>, diversity_slopes,   cross_entropy};
}

}  // namespace torchvq::kernels
