// The inner loops of residual_beam_search: screening scores of all extensions of one path, and the
// residual of a chosen one.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Number of groups of which the smallest value is kept: value j belongs to group j % kBeamGroups.
inline constexpr int64_t kBeamGroups = 64;

struct ResidualBeamScan {
  /// to[i] = values[i] / unit, rounded to the nearest integer, for `count` values: whole panels of
  /// nearest_code_scan.h. The quotients fit.
  void (*narrow)(const float* values, int64_t count, float unit, int16_t* to);

  /// values[k] = scale * (base[k] + unit * sum_i plus[i][k]) + shift; lowers smallest[g] to the
  /// smallest value of its group. The sums fit.
  void (*score)(const float* base, const int16_t* const* plus, int64_t plus_count, int64_t count,
                float unit, float scale, float shift, float* values, float* smallest);

  /// An upper bound of the count-th smallest of kBeamGroups numbers, exact if all differ.
  float (*bound)(const float* smallest, int64_t count);

  /// Writes the positions of values that are at most `limit`, in order, skipping NaN; returns their
  /// number. `places` has room for `count`.
  int64_t (*at_most)(const float* values, int64_t count, float limit, int32_t* places);

  /// to = from - code; returns the squared norm of `to`, in float64, in any order.
  double (*subtract)(const float* from, const float* code, int64_t dim, float* to);
};

ResidualBeamScan residual_beam_scan_default();
ResidualBeamScan residual_beam_scan_avx2();
ResidualBeamScan residual_beam_scan_avx512();

inline ResidualBeamScan residual_beam_scan(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, residual_beam_scan)();
}

}  // namespace torchvq::kernels
