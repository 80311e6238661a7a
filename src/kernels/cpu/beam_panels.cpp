#include "kernels/cpu/beam_panels.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/nearest_code_bound.h"

namespace torchvq::kernels {

BeamPanels::BeamPanels(const float* codes, const float* half, int64_t size, int64_t dim,
                       double radius, CpuLevel level)
    : scan_(nearest_code_scan(std::min(level, CpuLevel::kAvx512))),
      beam_scan_(residual_beam_scan(level)),
      dim_(dim),
      panel_count_((size + scan_.panel - 1) / scan_.panel),
      radius_(radius),
      half_norms_(stride()),
      zeros_(std::max(stride(), dim + scan_.lanes)),
      panels_(stride() * dim) {
  std::vector<int32_t> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  std::vector<double> squares(static_cast<size_t>(stride()));
  std::fill_n(zeros_.data(), zeros_.size(), 0.0F);
  scan_.pack_codes({codes, codes + size * dim, dim, all.data(), size}, zeros_.data(), dim, 0,
                   panel_count_, panels_.data(), squares.data());
  // The scan computes <row, code> - half norm; with the signs of codes and half norms flipped, it
  // returns half - <row, code>.
  for (int64_t i = 0; i < panels_.size(); ++i) panels_[i] = -panels_[i];
  std::fill_n(half_norms_.data(), half_norms_.size(), -HUGE_VALF);
  for (int64_t k = 0; k < size; ++k) half_norms_[k] = -half[k];
  coarse_scale_ = scan_.coarse_score != nullptr ? coarse_scale(radius) : 0;
  if (coarse_scale_ == 0) return;
  coarse_ = AlignedBuffer<int32_t>(stride() * scan_.coarse_words(dim));
  coarse_rounding_ = coarse_rounding(
      scan_.coarse_codes(panels_.data(), panel_count_, dim, dim, coarse_scale_, coarse_.data()));
  panels_ = AlignedBuffer<float>();
}

void BeamPanels::products(const BeamRows& rows, float* values) const {
  Scratch scratch(*this);
  for (int64_t row = 0; row < rows.count; row += scan_.tile_rows) {
    tile_products(rows, row, half_norms_.data(), scratch, values + row * stride());
  }
}

void BeamPanels::narrow_products(const BeamRows& rows, float unit, int16_t* to) const {
  Scratch scratch(*this);
  AlignedBuffer<float> values(scan_.tile_rows * stride());
  for (int64_t row = 0; row < rows.count; row += scan_.tile_rows) {
    tile_products(rows, row, zeros_.data(), scratch, values.data());
    const int64_t count = std::min<int64_t>(scan_.tile_rows, rows.count - row);
    beam_scan_.narrow(values.data(), count * stride(), -unit, to + row * stride());
  }
}

double BeamPanels::rounding(double row_norm) const {
  if (coarse_scale_ == 0) return 0;
  const bool scaled = coarse_scale(row_norm) > 0;
  return coarse_slope(radius_, coarse_rounding_, scaled ? prepared_row_rounding(dim_) : 1);
}

BeamPanels::Scratch::Scratch(const BeamPanels& panels)
    : tile(panels.scan_.tile_rows * panels.dim_),
      words(panels.scan_.tile_rows * panels.scan_.coarse_words(panels.dim_)) {}

/// The products of tile_rows rows from `first` on, minus half_norms, whose signs are flipped.
void BeamPanels::tile_products(const BeamRows& rows, int64_t first, const float* half_norms,
                               Scratch& scratch, float* values) const {
  const float* from = rows.values + first * dim_;
  const int64_t count = std::min<int64_t>(scan_.tile_rows, rows.count - first);
  if (count < scan_.tile_rows) {
    std::copy_n(from, count * dim_, scratch.tile.data());
    std::fill(scratch.tile.data() + count * dim_, scratch.tile.data() + scratch.tile.size(), 0.0F);
    from = scratch.tile.data();
  }
  if (coarse_scale_ == 0) {
    scan_.score(from, panels_.data(), half_norms, panel_count_, dim_, values);
    return;
  }
  float scales[kBeamTile], units[kBeamTile], errors[kBeamTile];
  coarse_units(rows.norms + first, count, scan_.tile_rows, coarse_scale_, scales, units);
  scan_.coarse_rows(from, scan_.tile_rows, dim_, dim_, scales, scratch.words.data(), errors);
  scan_.coarse_score(scratch.words.data(), units, coarse_.data(), half_norms, panel_count_,
                     scan_.coarse_words(dim_), values);
}

}  // namespace torchvq::kernels
