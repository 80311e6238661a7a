// Bounds on the difference between a screening score and the deciding score. The first part is that
// of the CPU (kernels/cpu/nearest_code_bound.h); the second covers half precision and tensor cores.
#pragma once

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr double kReach = 2.2;           // twice the error, and slack for rounding of the bound
constexpr double kLargestNorm = 0x1p60;  // rows and codes beyond are decided in float64
constexpr double kNormSlack = 1 + 1e-6;  // norms are summed in float64
constexpr int kScaledNorm = 8;           // rows and codes are scaled to norms below 2^8
constexpr int kDepthOfMma = 16;          // products added by one instruction
// A tensor core aligns the terms of an addition to the largest one and truncates them:
// each of the 16 products and the sum loses at most the last of the 24 bits of the
// largest, and so does the result.
constexpr double kLossPerMma = 18 * 0x1p-23;

/// How scores are computed: in float32, from numbers in half precision, or from numbers that are sums
/// of two in half precision.
enum class Scan { kFloat, kHalf, kSplit };
// A score that carries four bits of an index (PackedContest) is off by less than this, relatively.
constexpr double kPackingError = 0x1p-19;

/// Bounds for a codebook; norms are those of codes minus the centre.
struct CodeBound {
  double slope, intercept;  // of the float32 scan and the float64 decision
  double norm;              // largest norm
  double loss;              // largest norm of the error from rounding to half precision
  double split_loss;        // of the error from rounding to a sum of two numbers in half precision
  double offset;            // largest number that is subtracted from a product
  double cut;               // relative error of all tensor core additions of a score
  int scale;                // codes are multiplied by 2^scale before they are rounded
  int all_open;             // some code is not screened
};

__device__ inline double chain_error(double count, double unit) {
  const double product = count * unit;
  return product < 0.25 ? product / (1 - 2 * product) : 1e30;
}

/// norm: the largest norm of a code minus the centre; offset: the largest |bias| as added;
/// shift: the norm of the centre.
__device__ inline void set_score_error(CodeBound& bound, int64_t dim, double offset, double shift) {
  const double roundings = static_cast<double>(dim) + 16;
  const double scan = chain_error(roundings, 0x1p-24), decision = chain_error(roundings, 0x1p-53);
  const double tiny = 0x1p-120 * roundings, whole = bound.norm + shift;
  bound.offset = bound.norm * bound.norm / 2 + offset;
  bound.slope = scan * bound.norm + decision * whole + tiny;
  bound.intercept = scan * (bound.norm * bound.norm / 2 + offset) +
                    decision * (whole * shift + whole * whole + offset) + tiny * (1 + bound.norm);
}

/// Norms of a row minus the centre, and of its rounding errors, as in CodeBound.
struct RowNorms {
  double norm, loss = 0, split_loss = 0;
};

/// Margin by which the best score must exceed the runner-up to be certain.
template <Scan scan>
__device__ inline double margin_of(const CodeBound& bound, const RowNorms& row) {
  double error = bound.slope * row.norm + bound.intercept;
  if constexpr (scan == Scan::kHalf) {
    const double codes = bound.norm + bound.loss;
    error += kPackingError * ((row.norm + row.loss) * codes + bound.offset);
    error += (row.norm * bound.loss + row.loss * codes) * (1 + 1e-6);  // Cauchy-Schwarz
    error += bound.cut * (row.norm + row.loss) * codes;
  }
  if constexpr (scan == Scan::kSplit) {
    // The product of both second halves, whose norms are those of the errors of the first, is left out.
    const double codes = bound.norm + 2 * bound.loss, x = row.norm + 2 * row.loss;
    error += (row.norm * bound.split_loss + row.split_loss * codes +
              (row.loss + row.split_loss) * (bound.loss + bound.split_loss)) *
             (1 + 1e-6);
    error += bound.cut * x * codes + kPackingError * (x * codes + bound.offset);
  }
  return bound.all_open ? HUGE_VAL : kReach * error;
}

/// The exponent that scales a norm below 2^kScaledNorm, bounded so that its power of two,
/// and the product of two of them, are finite and nonzero. Errors at these bounds are
/// measured like all others.
__device__ inline int scale_of(double norm) {
  if (norm == 0) return 0;
  const int above =
      static_cast<int>(static_cast<unsigned long long>(__double_as_longlong(norm)) >> 52) - 1022;
  return min(max(kScaledNorm - above, -60), 100);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
