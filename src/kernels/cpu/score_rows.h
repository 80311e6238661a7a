// What lies between the matrix products of scores of tokens against codes, row by row in float64. Every instruction set
// gives the same bits: lanes are independent, and sums run over a fixed number of partial sums.
#pragma once

#include <stdint.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq::kernels {

/// Squared norms of the codes, (count,), and of the token of a row. A square of at most `noise` times the sum of both
/// counts as 0.
struct SquaredNorms {
  const double* of_codes;
  double of_token, noise;
};

/// Functions of a row: of `count` features, or of `count` scores.
struct ScoreRowsKernel {
  /// totals += row.
  void (*add_features)(const float* row, int64_t count, double* totals);
  /// to = row - centre. Returns the sum of the squares of `to`.
  double (*subtract)(const float* row, const double* centre, int64_t count, double* to);
  /// products, in place: -sqrt(of_code + of_token - 2 product).
  void (*negative_distances)(const SquaredNorms& norms, int64_t count, double* products);
  /// grad, in place: grad / score, and 0 where the score is 0.
  void (*divide)(const double* scores, int64_t count, double* grad);
  /// p = softmax(temperature * scores). No exponential is below exp(-700). All are NaN if a score is not finite.
  void (*probabilities)(const double* scores, double temperature, int64_t count, double* p);
  /// totals += p.
  void (*add_probabilities)(const double* p, int64_t count, double* totals);
  /// p, in place: p (log_mean - sum of p log_mean) factor.
  void (*diversity_slopes)(const double* log_mean, double factor, int64_t count, double* p);
  /// Minus the logarithm of softmax(scores) at `target`; NaN if a score is not finite. Unless null, slopes
  /// = factor (softmax(scores) - 1 at `target`).
  double (*cross_entropy)(const double* scores, int64_t target, double factor, int64_t count,
                          double* slopes);
};

ScoreRowsKernel score_rows_default();
ScoreRowsKernel score_rows_avx2();
ScoreRowsKernel score_rows_avx512();

inline ScoreRowsKernel score_rows_kernel(CpuLevel level) {
  return TORCHVQ_AT_LEVEL(level, score_rows)();
}

}  // namespace torchvq::kernels
