#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// A variance up to these is that of a constant feature, whose skewness, kurtosis and gradient stay
/// finite: what the rounding of moments leaves, and what can still be squared.
struct LeastVariance {
  double of_squared_mean, absolute;
};
constexpr LeastVariance least_variance(at::ScalarType moments) {
  return moments == at::kDouble ? LeastVariance{1e-24, 1e-60} : LeastVariance{1e-12, 1e-15};
}

/// Loss, mean, variance, skewness, kurtosis.
using MomentLossTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Called by every kernel.
void check_moment_loss(const at::Tensor& moments, at::ArrayRef<double> targets,
                       at::ArrayRef<double> weights);

void check_moment_loss_backward(const at::Tensor& grad, const at::Tensor& moments,
                                at::ArrayRef<double> targets, at::ArrayRef<double> weights);

/// Minimum number of tokens for statistic k.
constexpr int64_t least_tokens(int64_t k) { return k == 0 ? 1 : 2; }

}  // namespace torchvq::detail
