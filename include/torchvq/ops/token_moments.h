// Moments of tokens per feature, and a loss that pulls them to given values.
#pragma once

#include <array>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Central sums of the tokens: [n, mean (D), M2 (D), M3 (D), M4 (D)], M_k = sum (x - mean)^k.
///
/// @param x     (*, D), floating point. D >= 1.
/// @param mask  (*), bool, true for real tokens.
/// @return      (1 + 4 D), float64 (float32 on MPS); all 0 without tokens.
///
/// Gradient     to x; finite for a feature whose values are all equal.
/// Determinism  the same bits for any number of threads.
TORCHVQ_API at::Tensor token_moments(const at::Tensor& x,
                                     const std::optional<at::Tensor>& mask = std::nullopt);

/// Targets and weights of moment_loss() for mean, variance, skewness and excess kurtosis.
struct MomentTargets {
  std::array<double, 4> targets;
  std::array<double, 4> weights;
};

/// The result of moment_loss(): the loss, and the statistics (D) of all tokens.
struct MomentLoss {
  at::Tensor loss;  ///< scalar, dtype of the moments
  at::Tensor mean, variance, skewness, kurtosis;
};

/// sum over k of weight_k * mean over features of (statistic_k - target_k)^2.
///
/// Variance is unbiased, sum / (n - 1); skewness and kurtosis are those of
/// (x - mean) / sqrt(variance), kurtosis minus 3: 0 and -3 for a feature that is constant. With
/// fewer than 2 tokens there is no variance, and the terms that need it are 0. Without tokens the
/// loss is 0.
///
/// @param moments  (W, 1 + 4 D): a row of token_moments() for each of W parts of the tokens.
///
/// Gradient  of the loss to moments, except counts; the statistics have none.
TORCHVQ_API MomentLoss moment_loss(const at::Tensor& moments, const MomentTargets& targets);

}  // namespace torchvq::ops
