#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Called by every kernel.
void check_token_moments(const at::Tensor& x, const std::optional<at::Tensor>& mask);
void check_token_moments_backward(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& moments, const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
