// Products of rows with the codes of a level of a beam search, within a bound on their error
// (docs/design/residual-beam.md).
#pragma once

#include <cstdint>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/nearest_code_scan.h"
#include "kernels/cpu/residual_beam_scan.h"

namespace torchvq::kernels {

/// Slack for the rounding of a norm, so that it bounds the true one.
inline constexpr double kNormSlack = 1 + 1e-6;

/// Rows that lie dim apart, and their norms with slack.
struct BeamRows {
  const float* values;
  const double* norms;
  int64_t count;
};

/// A multiple of the rows of a tile, for any instruction set.
inline constexpr int64_t kBeamTile = 12;

/// The codes of a level, packed for products with rows: as 16-bit integers where that pays and the
/// norms allow it, or else in float32.
class BeamPanels {
 public:
  /// codes: (size, dim), finite; half: (size,), half the squared norms, infinite for excluded
  /// codes; radius: the largest norm, with slack.
  BeamPanels(const float* codes, const float* half, int64_t size, int64_t dim, double radius,
             CpuLevel level);

  /// values[row * stride() + k] = half[k] - <row, code k>. values has room for a multiple of
  /// kBeamTile rows.
  void products(const BeamRows& rows, float* values) const;

  /// to[row * stride() + k] = <row, code k> / unit, rounded to the nearest integer.
  void narrow_products(const BeamRows& rows, float unit, int16_t* to) const;

  /// Bounds the part of the error of a product that is due to rounding to integers, as a multiple
  /// of the norm of the row.
  double rounding(double row_norm) const;

  int64_t stride() const { return panel_count_ * scan_.panel; }

 private:
  struct Scratch {
    explicit Scratch(const BeamPanels& panels);
    AlignedBuffer<float> tile;     ///< of the last rows
    AlignedBuffer<int32_t> words;  ///< of a tile in integers
  };
  void tile_products(const BeamRows& rows, int64_t first, const float* half_norms, Scratch& scratch,
                     float* values) const;

  NearestCodeScan scan_;
  ResidualBeamScan beam_scan_;
  int64_t dim_, panel_count_;
  double radius_;
  AlignedBuffer<float> half_norms_, zeros_;
  AlignedBuffer<float> panels_;    ///< of codes in float32, or empty
  AlignedBuffer<int32_t> coarse_;  ///< in integers, or empty
  float coarse_scale_ = 0;
  double coarse_rounding_ = 0;
};

}  // namespace torchvq::kernels
