// Source of the inner loops; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Scoring is bound by loads: one per code and earlier level.
#include "kernels/cpu/residual_beam_scan.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr int kVectors = kBeamGroups / kLanes;

void score(const float* base, const float* const* plus, int64_t plus_count, int64_t count,
           float scale, float shift, float* values, float* smallest) {
  const Floats factor = Floats{} + scale, offset = Floats{} + shift;
  Floats least[kVectors];
  for (int i = 0; i < kVectors; ++i) least[i] = load<Floats>(smallest + i * kLanes);
  int64_t k = 0;
  for (; k + kBeamGroups <= count; k += kBeamGroups) {
    Floats v[kVectors];
    for (int i = 0; i < kVectors; ++i) v[i] = load<Floats>(base + k + i * kLanes);
    for (int64_t m = 0; m < plus_count; ++m) {
      const float* const row = plus[m] + k;
      for (int i = 0; i < kVectors; ++i) v[i] += load<Floats>(row + i * kLanes);
    }
    for (int i = 0; i < kVectors; ++i) {
      v[i] = v[i] * factor + offset;
      least[i] = v[i] < least[i] ? v[i] : least[i];
      store(values + k + i * kLanes, v[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) store(smallest + i * kLanes, least[i]);
  for (int64_t group = 0; k < count; ++k, ++group) {
    float value = base[k];
    for (int64_t m = 0; m < plus_count; ++m) value += plus[m][k];
    values[k] = value * scale + shift;
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

int64_t at_most(const float* values, int64_t count, float limit, int32_t* places) {
  int64_t found = 0, i = 0;
  for (; i + kBeamGroups <= count; i += kBeamGroups) {
    Ints hit[kVectors], any{};
    for (int v = 0; v < kVectors; ++v) {
      hit[v] = load<Floats>(values + i + v * kLanes) <= limit;
      any |= hit[v];
    }
    if (sum_lanes<int32_t, kLanes>(any) == 0) continue;
    for (int v = 0; v < kVectors; ++v) {
      if (sum_lanes<int32_t, kLanes>(hit[v]) == 0) continue;
      for (int l = 0; l < kLanes; ++l) {
        places[found] = static_cast<int32_t>(i + v * kLanes + l);
        found += hit[v][l] != 0;
      }
    }
  }
  for (; i < count; ++i) {
    if (values[i] <= limit) places[found++] = static_cast<int32_t>(i);
  }
  return found;
}

double subtract(const float* from, const float* code, int64_t dim, float* to) {
  constexpr int kHalf = kLanes / 2;
  Doubles sum[2] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    store(to + d, load<Floats>(from + d) - load<Floats>(code + d));
    for (int i = 0; i < 2; ++i) {
      const Doubles wide = widen(to + d + i * kHalf);
      sum[i] += wide * wide;
    }
  }
  double rest = 0;
  for (; d < dim; ++d) {
    to[d] = from[d] - code[d];
    rest += static_cast<double>(to[d]) * to[d];
  }
  return sum_lanes<double, kHalf>(sum[0] + sum[1]) + rest;
}

}  // namespace

ResidualBeamScan TORCHVQ_LEVEL_NAME(residual_beam_scan)() {
  return {score, bound, at_most, subtract};
}

}  // namespace torchvq::kernels
