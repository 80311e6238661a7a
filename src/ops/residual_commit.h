// Shared by all kernels of residual_commit and its backward: argument checks.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The sum of the codes, the losses, and the residuals.
using ResidualCommitTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

void check_residual_commit(const at::Tensor& x, at::TensorList codebooks, const at::Tensor& indices,
                           const std::optional<at::Tensor>& mask, std::string_view estimator,
                           double gain);

void check_residual_commit_backward(const at::Tensor& grads, const at::Tensor& residuals,
                                    const std::optional<at::Tensor>& mask, double gain,
                                    const std::optional<at::Tensor>& other);

}  // namespace torchvq::detail
