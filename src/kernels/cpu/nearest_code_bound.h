// How far a screening score of nearest_code_scan.h can lie from the score that decides; derivation
// in docs/design/search.md.
#pragma once

#include <cmath>
#include <cstdint>

namespace torchvq::kernels {

constexpr double kFloatUnit = 0x1p-24;   // largest relative rounding error of float32
constexpr double kDoubleUnit = 0x1p-53;  // and of float64
constexpr double kFloatTiny =
    0x1p-120;  // far above what underflow, or flushing it to zero, can cost per operation
constexpr double kLargeSquare =
    0x1p120;                    // squared norms below this cannot overflow a float32 score
constexpr double kReach = 2.2;  // twice the error, and slack for the rounding of the bound itself

/// Relative error of a chain of `count` roundings, compounded; past all use when there are too
/// many.
inline double chain_error(int64_t count, double unit) {
  const double product = static_cast<double>(count) * unit;
  return product < 0.25 ? product / (1 - 2 * product) : 1e30;
}

/// The largest float that is not above `value`. A limit rounded down lets a candidate too many
/// pass, never one too few.
inline float round_down(double value) {
  const auto rounded = static_cast<float>(value);
  return static_cast<double>(rounded) > value ? std::nextafter(rounded, -HUGE_VALF) : rounded;
}

/// |screening score - deciding score| <= slope * ||x - center|| + intercept, up to a constant per
/// row.
struct ScoreError {
  double slope, intercept;
};

/// norm: of the code minus center; offset: |bias| as added to the score; shift: ||center||.
inline ScoreError score_error(int64_t dim, double norm, double offset, double shift) {
  const double scan = chain_error(dim + 16, kFloatUnit),
               decision = chain_error(dim + 16, kDoubleUnit);
  const double tiny = kFloatTiny * static_cast<double>(dim + 16);
  const double whole = norm + shift;
  return {scan * norm + decision * whole + tiny,
          scan * (norm * norm / 2 + offset) + decision * (whole * shift + whole * whole + offset) +
              tiny * (1 + norm)};
}

// Of scaled rows and codes: 16-bit integers hold it, and so do two digits in [-128, 127].
constexpr double kCoarseNorm = 32600;

/// Norm of the difference between a scaled vector and its integers, as a fraction of kCoarseNorm.
/// square: of that difference, summed in float32 from float32 products; each is off by at most
/// 2^-24 of itself, together 2^-24 of kCoarseNorm.
inline double coarse_rounding(float square) {
  return std::sqrt(static_cast<double>(square)) * (1 + 1e-4) / kCoarseNorm + kFloatUnit;
}

/// What rounding to integers can cost a row of `dim` values at most, as a fraction of its norm: half of
/// one in every dimension.
inline double prepared_row_rounding(int64_t dim) {
  return std::sqrt(static_cast<double>(dim)) / 2 / kCoarseNorm * (1 + 1e-6) + 2 * kFloatUnit;
}

/// What integers add to the slope: by Cauchy-Schwarz the products of either side's rounding with
/// the other, and of both. norm: the largest of the codes less center.
inline double coarse_slope(double norm, double rounding_of_codes, double rounding_of_row) {
  return norm * (rounding_of_codes + rounding_of_row + rounding_of_codes * rounding_of_row) *
         (1 + 1e-6);
}

/// What a score -(||x - c||^2 + bias) must reach to be among the k best, given the k-th best score.
/// The error of a distance v is at most alpha (v + bias_bound) + beta: relative for the
/// differences, which need no centre, and absolute for the float64 sum that decides, which sees
/// ||x|| and ||c|| <= ||x|| + sqrt(v).
inline double limit_of_distance(double kth_score, int64_t dim, double x_square, double bias_bound) {
  const double decision = chain_error(dim + 16, kDoubleUnit);
  const double alpha = chain_error(dim + 16, kFloatUnit) + 8 * decision;
  const double beta =
      8 * decision * (x_square + bias_bound) + kFloatTiny * static_cast<double>(dim + 16);
  const double reach = 2 * (alpha * bias_bound + beta) * (1 + 1e-6);
  return (kth_score * (1 + alpha) - reach) / (1 - alpha) - std::abs(kth_score) * 1e-12;
}

}  // namespace torchvq::kernels
