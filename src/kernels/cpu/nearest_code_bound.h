// Bounds on the difference between a screening score of nearest_code_scan.h and the deciding score;
// derivation in docs/design/search.md.
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

/// Compounded relative error of a chain of `count` roundings; 1e30, which is of no use as a
/// bound, if there are too many.
inline double chain_error(int64_t count, double unit) {
  const double product = static_cast<double>(count) * unit;
  return product < 0.25 ? product / (1 - 2 * product) : 1e30;
}

/// The largest float that is not above `value`. A limit rounded down may admit a candidate too
/// many, never one too few.
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

// Norm to which rows and codes are scaled: it fits 16-bit integers, and two digits in [-128, 127].
constexpr double kCoarseNorm = 32600;

/// Norms that coarse screening scales to kCoarseNorm: the scales stay far from the limits of float32.
constexpr double kSmallestCoarse = 1e-12, kLargestCoarse = 1e12;

/// The scale of a vector of this norm; 0 if the norm is out of bounds.
inline float coarse_scale(double norm) {
  return norm > kSmallestCoarse && norm < kLargestCoarse ? static_cast<float>(kCoarseNorm / norm)
                                                         : 0.0F;
}

/// Scales of rows of these norms, and the units of their products with codes of scale `of_codes`; 0
/// where a row is not scaled, and from `count` to `padded`.
inline void coarse_units(const double* norms, int64_t count, int64_t padded, float of_codes,
                         float* scales, float* units) {
  for (int64_t r = 0; r < padded; ++r) {
    const double scale = r < count ? coarse_scale(norms[r]) : 0;
    scales[r] = static_cast<float>(scale);
    units[r] = scale > 0 ? static_cast<float>(1 / (scale * of_codes)) : 0.0F;
  }
}

/// Norm of the difference between a scaled vector and its integers, as a fraction of kCoarseNorm.
/// square: the squared norm of that difference, summed in float32 from float32 products; each
/// product is off by at most 2^-24 of itself, together 2^-24 of kCoarseNorm.
inline double coarse_rounding(float square) {
  return std::sqrt(static_cast<double>(square)) * (1 + 1e-4) / kCoarseNorm + kFloatUnit;
}

/// Largest error from rounding a row of `dim` values to integers, as a fraction of its norm: half a
/// unit in every dimension.
inline double prepared_row_rounding(int64_t dim) {
  return std::sqrt(static_cast<double>(dim)) / 2 / kCoarseNorm * (1 + 1e-6) + 2 * kFloatUnit;
}

/// Addition to the slope for rounded integers: by Cauchy-Schwarz, the products of each
/// side's rounding error with the other side, and of both errors. norm: the largest
/// norm of a code minus center.
inline double coarse_slope(double norm, double rounding_of_codes, double rounding_of_row) {
  return norm * (rounding_of_codes + rounding_of_row + rounding_of_codes * rounding_of_row) *
         (1 + 1e-6);
}

/// Score -(||x - c||^2 + bias) that a code must reach to be among the k best, given the k-th best
/// score. The error of a distance v is at most alpha (v + bias_bound) + beta: relative for the
/// differences, which need no centre, and absolute for the deciding float64 sum, which depends on
/// ||x|| and ||c|| <= ||x|| + sqrt(v).
inline double limit_of_distance(double kth_score, int64_t dim, double x_square, double bias_bound) {
  const double decision = chain_error(dim + 16, kDoubleUnit);
  const double alpha = chain_error(dim + 16, kFloatUnit) + 8 * decision;
  const double beta =
      8 * decision * (x_square + bias_bound) + kFloatTiny * static_cast<double>(dim + 16);
  const double reach = 2 * (alpha * bias_bound + beta) * (1 + 1e-6);
  return (kth_score * (1 + alpha) - reach) / (1 - alpha) - std::abs(kth_score) * 1e-12;
}

/// Cosine less bias that a code must reach to be among the k best, given the k-th best score. The screening score is a
/// product of the unit row with a code, divided by a root of the sum of its squares; the deciding one takes unit codes,
/// rounded to float32.
inline double limit_of_angle(double kth_score, int64_t dim, double bias_bound) {
  const double error = 2 * chain_error(dim + 16, kFloatUnit) +
                       (chain_error(dim + 16, kDoubleUnit) + 2 * kFloatUnit) * (1 + bias_bound) +
                       kFloatTiny * static_cast<double>(dim + 16);
  return kth_score - kReach * error;
}

}  // namespace torchvq::kernels
