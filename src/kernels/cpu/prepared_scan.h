// Screening of rows on codes in 8 bits (prepared_codes.h): products of integers, added without error. One
// table of functions per instruction set.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"
#include "kernels/cpu/prepared_codes.h"

namespace torchvq::kernels {

/// A row less the centre, as integers in the form that `screen` of the same table reads. What rounding can
/// cost its score with a code is at most slope * (slope of the code) + rounding * (norm of the code).
struct PreparedRow {
  const int32_t* words;  ///< one or two for each block of four dimensions
  float unit;            ///< of the integers
  float slope, rounding;
  int32_t offset;  ///< what the 128 in every byte of a code adds to the products
};

/// A code that may be the nearest of a row, and what its score is at most.
struct PreparedHit {
  int32_t row, code;
  float score;
};

/// `count` rows, all of one kind, and for each the largest score that some code is known to reach.
struct PreparedRows {
  const PreparedRow* rows;
  int64_t count;
  bool bytes;  ///< a word per block, of 8 bits a dimension; else two words, of 16
  float* floors;
};

/// What score_error() of nearest_code_bound.h is made of, with slack, and the norm of the centre.
struct RoundingErrors {
  float scan, decision, tiny, shift;
};

struct PreparedScan {
  /// Writes row minus center (dim), padded with zeros to whole panels, and returns its norm, rounded up;
  /// not finite where the difference is not, or its square overflows.
  float (*center_row)(const float* row, const float* center, int64_t dim, float* centred);
  /// Rounds a centred row of that norm, which is in (1e-12, 1e12), to words of 16 bits. `integers` holds a
  /// number for each of its values. The slope of a code counts what that has cost.
  PreparedRow (*round_row)(const float* centred, float norm, int64_t dim, int16_t* integers,
                           int32_t* words);
  /// The same to 8 bits, of rows of up to 1e12; what it has cost is measured. Null where products of bytes
  /// are no cheaper.
  PreparedRow (*round_row_bytes)(const float* centred, float norm, int64_t dim, int32_t* words);

  /// Appends the codes of the panels [begin, end) that may be nearest to a row, and raises its floor.
  /// norms: of the codes, padded to whole panels. Returns how many hits there are then; -1 if more than
  /// `capacity`.
  int64_t (*screen)(const PreparedCodes& codes, const float* norms, const PreparedRows& rows,
                    int64_t begin, int64_t end, PreparedHit* hits, int64_t found, int64_t capacity);

  /// distances[i] = ||row - codes[i]||^2 in float32.
  void (*distances)(const float* row, int64_t dim, const float* const* codes, int64_t count,
                    float* distances);

  /// Writes the panels [begin, end) of a copy of `size` codes whose centre is set, in float32. bias: of the
  /// codes, or null. False for codes that are too large. Null where round_row_bytes is.
  bool (*round_codes)(const float* codes, int64_t size, const float* bias,
                      const RoundingErrors& errors, const PreparedCodes& to, int64_t begin,
                      int64_t end);
};

PreparedScan prepared_scan_default();
PreparedScan prepared_scan_avx2();
PreparedScan prepared_scan_avx512();

/// AVX-512 is used where it multiplies bytes; without, it has no more products than AVX2.
PreparedScan prepared_scan(CpuLevel level);

}  // namespace torchvq::kernels
