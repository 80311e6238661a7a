// The inner loops of residual_beam_search: screening scores of all extensions of one path, and the
// residual of a chosen one.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

struct ResidualBeamScan {
  /// Writes position and value of base[k] + sum_i plus[i][k] wherever it is at most `limit`, in
  /// order of k; returns how many. NaN is passed over. places and values have room for `count`.
  int64_t (*at_most)(const float* base, const float* const* plus, int64_t plus_count, int64_t count,
                     float limit, int32_t* places, float* values);

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
