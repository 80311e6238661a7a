// Internals of token_moment_loss: the operator with the signature of the dispatcher.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Loss, mean, variance, skewness, kurtosis, and the moments that backward uses.
using TokenMomentLossTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

TokenMomentLossTensors call_token_moment_loss(const at::Tensor& x, at::ArrayRef<double> targets,
                                              at::ArrayRef<double> weights,
                                              const std::optional<at::Tensor>& mask);

void check_token_moment_loss(const at::Tensor& x, at::ArrayRef<double> targets,
                             at::ArrayRef<double> weights, const std::optional<at::Tensor>& mask);
void check_token_moment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                      const at::Tensor& moments, at::ArrayRef<double> targets,
                                      at::ArrayRef<double> weights,
                                      const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
