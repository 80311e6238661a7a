// Argument checks of paired_commitment_loss, and its any-device gradient.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                  const std::optional<at::Tensor>& mask, double to_x,
                                  double to_codes);
void check_paired_commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                           const at::Tensor& codes,
                                           const std::optional<at::Tensor>& mask, double to_x,
                                           double to_codes);

/// The gradients of x and codes in their dtypes, computed by differentiable operators.
std::tuple<at::Tensor, at::Tensor> paired_gradients_any(const at::Tensor& grad, const at::Tensor& x,
                                                        const at::Tensor& codes,
                                                        const std::optional<at::Tensor>& mask,
                                                        double to_x, double to_codes);

/// The same by the operator of the device where no gradient is recorded.
std::tuple<at::Tensor, at::Tensor> paired_gradients(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& codes,
                                                    const std::optional<at::Tensor>& mask,
                                                    double to_x, double to_codes);

}  // namespace torchvq::detail
