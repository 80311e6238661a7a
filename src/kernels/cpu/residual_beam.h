// Beam search of a block of float32 rows through residual levels (docs/design/residual-beam.md).
//
// Screening scores in float32, with a proven bound on their error, leave few extensions; where the
// bound cannot separate the best, the exact scores of the contract decide.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/beam_panels.h"
#include "kernels/cpu/residual_beam_scan.h"

namespace torchvq::kernels {

struct BeamLevel {
  const BeamPanels* panels = nullptr;
  const float* codes = nullptr;    ///< (size, dim)
  const bool* excluded = nullptr;  ///< (size,), codes with a NaN or infinity
  const double* norms = nullptr;   ///< (size,), with slack, 0 where excluded
  /// Products with the codes of each earlier level, (size there, panels->stride()), or empty.
  std::vector<const int16_t*> products;
  float unit = 0;  ///< of these products
  int64_t size = 0;
  int64_t finite = 0;  ///< codes that are not excluded
  double radius = 0;   ///< the largest of them
  double weight = 1;
};

struct BeamTask {
  std::vector<BeamLevel> levels;
  int64_t dim = 0, beam = 1;
  bool weighted = false;  ///< whether the scores of the levels add up
  /// Whether products with the codes are computed once per row, and not per path from its residual.
  bool products = false;
};

/// Not thread-safe: it keeps scratch memory between calls.
class ResidualBeam {
 public:
  ResidualBeam(const BeamTask& task, CpuLevel level, int64_t max_rows);

  /// Starts `rows` rows that lie dim apart, at most max_rows.
  void begin(const float* x, int64_t rows);

  /// Extends all paths by the next level.
  void step();

  /// Writes the best path of each row: (rows, levels). A row with a NaN or infinity gets 0.
  void finish(int64_t* indices) const;

 private:
  struct Path {
    double score;   ///< sum over levels, if weighted; otherwise the squared norm of the residual
    double length;  ///< squared norm of the residual
    double reach;   ///< bounds the sum of the norms of the row and the codes in the residual
  };
  struct Extension {
    double value;
    int64_t place;  ///< path * size + code
    bool operator<(const Extension& other) const {
      return value < other.value || (value == other.value && place < other.place);
    }
  };

  const float* residuals() const { return residuals_[side_].data(); }  ///< (rows, width, dim)
  void extend_row(int64_t row, const float* base, int64_t count);
  double offset(const Path& path) const {
    return task_.weighted ? path.score + level().weight * path.length : path.length;
  }
  bool screens(int64_t row, int64_t count);
  double value_error(int64_t row, double reach) const;
  int64_t roundings() const { return task_.dim + 3 * levels_ + 16; }
  /// Rows of products for each row.
  int64_t per_row() const { return task_.products ? 1 : width_; }
  void measure_rows();
  void score_paths(int64_t row, const float* base);
  void collect(int64_t count);
  void reduce(int64_t count);
  void collect_exactly(int64_t row);
  void choose(int64_t row, int64_t count);
  void score_exactly(int64_t row, Extension* extensions, int64_t count) const;
  void continue_paths(int64_t row, int64_t count);

  const BeamLevel& level() const { return task_.levels[static_cast<size_t>(done_)]; }
  bool last() const { return done_ + 1 == static_cast<int64_t>(task_.levels.size()); }
  const Path* paths(int64_t row) const { return paths_[side_].data() + row * task_.beam; }

  const BeamTask& task_;
  const ResidualBeamScan scan_;
  int64_t rows_ = 0, width_ = 1, next_width_ = 1, done_ = 0, levels_;
  int side_ = 0;
  AlignedBuffer<float> x_;             ///< (rows, dim), if task.products
  AlignedBuffer<float> base_;          ///< products with the codes, per row or path
  AlignedBuffer<float> residuals_[2];  ///< (rows, width, dim)
  std::vector<Path> paths_[2];         ///< (rows, beam), the first `width` of each row used
  std::vector<int32_t> histories_[2];  ///< (rows, beam, levels)
  std::vector<bool> finite_;           ///< per row
  std::vector<double> norms_;          ///< of the rows of the products, with slack
  std::vector<Extension> extensions_;  ///< of the current row
  std::vector<const int16_t*> plus_;
  std::vector<float> values_;    ///< of all its extensions: half their scores, minus a shift
  std::vector<float> smallest_;  ///< per group
  std::vector<int32_t> places_;
  double shift_ = 0;   ///< half the offset of the best path
  double margin_ = 0;  ///< twice the error of a value
  double limit_ = 0;   ///< values above it are not among the best
  size_t room_ = 0;    ///< number of extensions at which the worst are dropped
};

}  // namespace torchvq::kernels
