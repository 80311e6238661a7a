#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Keeps skewness, kurtosis and their gradient finite for a constant feature.
constexpr double kLeastVariance = 1e-8;

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
