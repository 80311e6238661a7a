// Screening of rows on codes in 8 bits (prepared_codes.h): exact sums of products of integers. One
// table of functions per instruction set.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"
#include "kernels/cpu/prepared_codes.h"

namespace torchvq::kernels {

/// A row minus the centre, as integers in the layout that `screen` of the same table
/// reads. Rounding changes its score with a code by at most slope * (slope of the code) +
/// rounding * (norm of the code).
struct PreparedRow {
  const int32_t* words;  ///< one or two for each block of four dimensions
  float unit;            ///< of the integers
  float slope, rounding;
  int32_t offset;  ///< contribution of the 128 in every byte of a code to the products
};

/// A code that may be the nearest of a row, and an upper bound of its score.
struct PreparedHit {
  int32_t row, code;
  float score;
};

/// `count` rows of the same kind, and for each the largest score that some
/// code is certain to reach.
struct PreparedRows {
  const PreparedRow* rows;
  int64_t count;
  bool bytes;  ///< one word per block, with 8 bits per dimension; otherwise two words, with 16
  float* floors;
};

/// The constants of score_error() in nearest_code_bound.h, with slack, and the norm of the centre.
struct RoundingErrors {
  float scan, decision, tiny, shift;
};

constexpr int64_t kBlockPanels = 16;  // panels that are screened together
constexpr int64_t kSpareHits = 64;    // room that is left free before hits are added

/// The largest numbers of the codes of a block of panels.
struct PreparedBlock {
  float slope, intercept;
  float norm;  ///< of the codes minus the centre
};

struct PreparedScan {
  /// Writes row minus center (dim), padded with zeros to whole panels, and returns its norm,
  /// rounded up; the result is not finite if the difference is not, or if its square overflows.
  float (*center_row)(const float* row, const float* center, int64_t dim, float* centred);
  /// Rounds a centred row of this norm, which is in (1e-12, 1e12), to words of 16 bits.
  /// `integers` is scratch memory with a number for each of its values. The slope of a code
  /// includes this rounding error.
  PreparedRow (*round_row)(const float* centred, float norm, int64_t dim, int16_t* integers,
                           int32_t* words);
  /// The same to 8 bits, for norms of up to 1e12; the rounding error is measured. Null where
  /// products of bytes are no cheaper.
  PreparedRow (*round_row_bytes)(const float* centred, float norm, int64_t dim, int32_t* words);

  /// Appends the codes of the panels [begin, end) that may be nearest to a row, and raises the
  /// row's floor. begin is that of a block; blocks: of all panels. Returns the new number of hits;
  /// -1 if it would exceed `capacity`.
  int64_t (*screen)(const PreparedCodes& codes, const PreparedBlock* blocks,
                    const PreparedRows& rows, int64_t begin, int64_t end, PreparedHit* hits,
                    int64_t found, int64_t capacity);

  /// distances[i] = ||row - codes[i]||^2 in float32.
  void (*distances)(const float* row, int64_t dim, const float* const* codes, int64_t count,
                    float* distances);

  /// Writes the panels [begin, end) of a copy of `size` codes whose centre is set,
  /// computing in float32. bias: of the codes, or null. False for codes that are too large.
  /// Null where round_row_bytes is.
  bool (*round_codes)(const float* codes, int64_t size, const float* bias,
                      const RoundingErrors& errors, const PreparedCodes& to, int64_t begin,
                      int64_t end);
};

PreparedScan prepared_scan_default();
PreparedScan prepared_scan_avx2();
PreparedScan prepared_scan_avx512();

/// AVX-512 is used only with byte products (VNNI); without them it multiplies no more than AVX2.
PreparedScan prepared_scan(CpuLevel level);

}  // namespace torchvq::kernels
