// Argument checks of commitment_loss and its backward.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask);

void check_commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                    const at::Tensor& codes, const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
