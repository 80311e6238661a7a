// The commitment losses of all levels of a residual stack.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// The commitment_loss() of every level, with one gradient to the tokens that entered the stack.
///
/// Formula      loss_q = commitment_loss(inputs[q], codes[q], mask);
///              dx = d_0 + (d_1 + (... + d_(Q-1))), d_q the gradient of loss_q to inputs[q], because
///              the input of a level is x minus codes, which are constants
///
/// @param x       (H, T, D), floating point: the tokens that receive the gradient. Values are not
///                read.
/// @param inputs  Q >= 1 of (H, T, D), the input of each level, from residual_lookup().
/// @param codes   Q of (H, T, D), the chosen codes of each level.
/// @param mask    (H, T), bool; True marks a real token. Padding may hold anything. Default: all real.
/// @return        (Q,), float64 if inputs or codes are float64, else float32.
///
/// Gradient     to x as above, in its dtype, differentiable any number of times; none to inputs and
///              codes.
/// Empty        no token, or none unmasked: 0 with zero gradient.
/// Non-finite, Precision, Determinism   as commitment_loss().
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor residual_commitment_loss(
    const at::Tensor& x, at::TensorList inputs, at::TensorList codes,
    const std::optional<at::Tensor>& mask = std::nullopt);

/// The backward of residual_commitment_loss(): the sum over the levels, from the last to the first,
/// of grads[q] * 2 / count * (inputs[q] - codes[q]), (H, T, D), where count is the number of
/// unmasked values; 0 where masked. `grads` is (Q,) and has the dtype of the result.
TORCHVQ_API at::Tensor residual_commitment_loss_backward(
    const at::Tensor& grads, at::TensorList inputs, at::TensorList codes,
    const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
