// Argument checks of linear_nearest_code and its gradient.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_linear_nearest_code(const at::Tensor& x, const at::Tensor& frozen,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias);
void check_linear_nearest_code_backward(const at::Tensor& grad, const at::Tensor& absent,
                                        const at::Tensor& indices, const at::Tensor& frozen);

/// Gradients of tokens (T, D) in the dtype of frozen; zero where tokens are absent (1, T): those
/// that are not finite belong to no code.
at::Tensor gradient_rows(const at::Tensor& grad, const at::Tensor& absent,
                         const at::Tensor& frozen);

/// The gradients of weight and bias from that of the codes. Where gradients are recorded, by
/// differentiable operators.
std::tuple<at::Tensor, at::Tensor> linear_map_gradients(const at::Tensor& grad,
                                                        const at::Tensor& absent,
                                                        const at::Tensor& indices,
                                                        const at::Tensor& frozen);

}  // namespace torchvq::detail
