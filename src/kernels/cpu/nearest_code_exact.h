// The scores that decide nearest_code, to the last bit as include/torchvq/ops/nearest_code.h
// defines them: float64 sums over d in index order, nothing contracted or reassociated. Smaller is
// better.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

template <typename T>
struct NearestCodePairs {
  /// Rows divided by their norms; a zero row stays zero.
  void (*unit_rows)(const T* const* rows, int64_t count, int64_t dim, T* const* units);

  /// scores[i] = sum_d (c_d^2 / 2 - x_d c_d), or sum_d (-x_d c_d) with `cosine`, c = codes[i],
  /// without bias.
  void (*pair_scores)(const T* row, int64_t dim, const T* const* codes, int64_t count, bool cosine,
                      double* scores);
};

struct NearestCodeExact : NearestCodePairs<float> {
  NearestCodePairs<double> wide;

  int32_t panel, tile_rows;  ///< of the float64 scan
  void (*unit_row)(const double* row, int64_t dim, double* unit);

  /// As pair_scores, for float64 codes in panels (value d of code j of a panel at d * panel + j) and
  /// tile_rows rows that lie `dim` apart: scores[r * panel_count * panel + position].
  void (*score_tile)(const double* rows, const double* panels, int64_t panel_count, int64_t dim,
                     bool cosine, double* scores);
};

NearestCodeExact nearest_code_exact_default();
NearestCodeExact nearest_code_exact_avx2();
NearestCodeExact nearest_code_exact_avx512();

inline NearestCodeExact nearest_code_exact(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, nearest_code_exact)();
}

}  // namespace torchvq::kernels
