// Source of the inner loops; included by one file per instruction set, which defines
// TORCHVQ_LEVEL_NAME. Bound by loads: one per code and earlier level.
#include "kernels/cpu/residual_beam_scan.h"
#include "kernels/cpu/simd-inl.h"

namespace torchvq::kernels {
namespace {

constexpr int kVectors = 4;
constexpr int64_t kBlock = kVectors * kLanes;

/// kBlock values at k; returns whether one may be at most `limit`.
inline bool block_at_most(const float* base, const float* const* plus, int64_t plus_count,
                          int64_t k, float limit, float* values) {
  Floats v[kVectors];
  for (int i = 0; i < kVectors; ++i) v[i] = load<Floats>(base + k + i * kLanes);
  for (int64_t m = 0; m < plus_count; ++m) {
    const float* const row = plus[m] + k;
    for (int i = 0; i < kVectors; ++i) v[i] += load<Floats>(row + i * kLanes);
  }
  Ints hit{};
  for (int i = 0; i < kVectors; ++i) hit |= v[i] <= limit;
  if (sum_lanes<int32_t, kLanes>(hit) == 0) return false;
  for (int i = 0; i < kVectors; ++i) store(values + i * kLanes, v[i]);
  return true;
}

int64_t at_most(const float* base, const float* const* plus, int64_t plus_count, int64_t count,
                float limit, int32_t* places, float* values) {
  int64_t found = 0, k = 0;
  float block[kBlock];
  for (; k + kBlock <= count; k += kBlock) {
    if (!block_at_most(base, plus, plus_count, k, limit, block)) continue;
    for (int64_t j = 0; j < kBlock; ++j) {
      places[found] = static_cast<int32_t>(k + j);
      values[found] = block[j];
      found += block[j] <= limit;
    }
  }
  for (; k < count; ++k) {
    float value = base[k];
    for (int64_t m = 0; m < plus_count; ++m) value += plus[m][k];
    if (!(value <= limit)) continue;
    places[found] = static_cast<int32_t>(k);
    values[found++] = value;
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

ResidualBeamScan TORCHVQ_LEVEL_NAME(residual_beam_scan)() { return {at_most, subtract}; }

}  // namespace torchvq::kernels
