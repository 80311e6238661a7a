// Source of the inner loops; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Scoring is bound by loads, one per code and earlier level, so these are integers of 16 bits.
#include "kernels/cpu/residual_beam_scan.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr int kVectors = kBeamGroups / kLanes;

using Shorts = Vector<int16_t, kLanes>;

void narrow(const float* values, int64_t count, float unit, int16_t* to) {
  const Floats scale = Floats{} + 1 / unit;
  for (int64_t i = 0; i < count; i += kLanes) {
    // Adding 1.5 * 2^23 leaves the rounded number in the low bits.
    const Floats sum = load<Floats>(values + i) * scale + 12582912.0F;
    store(to + i, __builtin_convertvector(reinterpret_cast<Ints>(sum) - 0x4B400000, Shorts));
  }
}

void score(const float* base, const int16_t* const* plus, int64_t plus_count, int64_t count,
           float unit, float scale, float shift, float* values, float* smallest) {
  const Floats factor = Floats{} + scale, offset = Floats{} + shift, step = Floats{} + unit;
  Floats least[kVectors];
  for (int i = 0; i < kVectors; ++i) least[i] = load<Floats>(smallest + i * kLanes);
  int64_t k = 0;
  for (; k + kBeamGroups <= count; k += kBeamGroups) {
    Shorts sum[kVectors] = {};
    for (int64_t m = 0; m < plus_count; ++m) {
      const int16_t* const row = plus[m] + k;
      for (int i = 0; i < kVectors; ++i) sum[i] += load<Shorts>(row + i * kLanes);
    }
    for (int i = 0; i < kVectors; ++i) {
      const Floats added = __builtin_convertvector(sum[i], Floats) * step;
      const Floats v = (load<Floats>(base + k + i * kLanes) + added) * factor + offset;
      least[i] = v < least[i] ? v : least[i];
      store(values + k + i * kLanes, v);
    }
  }
  for (int i = 0; i < kVectors; ++i) store(smallest + i * kLanes, least[i]);
  for (int64_t group = 0; k < count; ++k, ++group) {
    int32_t sum = 0;
    for (int64_t m = 0; m < plus_count; ++m) sum += plus[m][k];
    values[k] = (base[k] + static_cast<float>(sum) * unit) * scale + shift;
    if (values[k] < smallest[group]) smallest[group] = values[k];
  }
}

/// The smallest lane.
template <int count>
inline float least_lane(Vector<float, count> v) {
  if constexpr (count == 2) {
    return v[0] < v[1] ? v[0] : v[1];
  } else {
    Vector<float, count / 2> half[2];
    memcpy(half, &v, sizeof v);
    return least_lane<count / 2>(half[0] < half[1] ? half[0] : half[1]);
  }
}

float bound(const float* smallest, int64_t count) {
  Floats v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = load<Floats>(smallest + i * kLanes);
  float found = INFINITY;
  for (int64_t taken = 0; taken < count; ++taken) {
    Floats least = v[0];
    for (int i = 1; i < kVectors; ++i) least = v[i] < least ? v[i] : least;
    found = least_lane<kLanes>(least);
    // Equal values are removed together, so the result may be too large, but never too small.
    for (int i = 0; i < kVectors; ++i) v[i] = v[i] <= found ? Floats{} + INFINITY : v[i];
  }
  return found;
}

double subtract(const float* from, const float* code, int64_t dim, float* to) {
  Doubles sum[2] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    store(to + d, load<Floats>(from + d) - load<Floats>(code + d));
    for (int i = 0; i < 2; ++i) {
      const Doubles wide = widen(to + d + i * kHalfLanes);
      sum[i] += wide * wide;
    }
  }
  double rest = 0;
  for (; d < dim; ++d) {
    to[d] = from[d] - code[d];
    rest += static_cast<double>(to[d]) * to[d];
  }
  return sum_lanes<double, kHalfLanes>(sum[0] + sum[1]) + rest;
}

}  // namespace

ResidualBeamScan TORCHVQ_LEVEL_NAME(residual_beam_scan)() {
  return {narrow, score, bound, places_reaching<Side::kAtMost>, subtract};
}

}  // namespace torchvq::kernels
