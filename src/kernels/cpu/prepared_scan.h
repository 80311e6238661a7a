// Screening of a few rows on prepared codes: products of 8-bit codes with 16-bit rows, added without
// error. One table of functions per instruction set.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// A row less the centre, as integers of norm kCoarseNorm in the form that `score` of the same table reads.
struct PreparedRow {
  const int32_t* words;  ///< two for each block of four dimensions
  float unit;            ///< of the integers
  float norm;            ///< of the row, rounded up by a thousandth at most
  int32_t offset;        ///< what the 128 in every byte of a code adds to the products
};

struct PreparedScan {
  /// Writes row minus center (dim), padded with zeros to whole panels, and returns its norm, rounded up;
  /// not finite where the difference is not, or its square overflows.
  float (*center_row)(const float* row, const float* center, int64_t dim, float* centred);
  /// Rounds a centred row of that norm, which is in (1e-12, 1e12), to words (2 * blocks). `integers`
  /// holds a number for each of its values.
  PreparedRow (*round_row)(const float* centred, float norm, int64_t dim, int16_t* integers,
                           int32_t* words);
  /// scores[r * stride + k]: what the score of row r with code k is at most, for the codes of the panels
  /// [begin, end), which begin at `panels`.
  void (*score)(const PreparedRow* rows, int64_t row_count, const uint8_t* panels, int64_t dim,
                int64_t begin, int64_t end, float* scores, int64_t stride);
};

PreparedScan prepared_scan_default();
PreparedScan prepared_scan_avx2();
PreparedScan prepared_scan_avx512();

/// AVX-512 is used where it multiplies bytes; without, it has no more products than AVX2.
PreparedScan prepared_scan(CpuLevel level);

}  // namespace torchvq::kernels
