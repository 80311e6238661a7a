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
///              what a level is given is x less codes, which are constants
///
/// @param x       (H, T, D), floating point: the tokens that the gradient goes to. Values are not read.
/// @param inputs  Q >= 1 of (H, T, D), what each level was given, as residual_lookup() returns it.
/// @param codes   Q of (H, T, D), what each level chose.
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

/// Its backward: the sum over the levels, the last one first, of grads[q] * 2 / count * (inputs[q] -
/// codes[q]), (H, T, D), count being that of the unmasked values; 0 where masked. `grads` is (Q,) and
/// has the dtype of the result.
TORCHVQ_API at::Tensor residual_commitment_loss_backward(
    const at::Tensor& grads, at::TensorList inputs, at::TensorList codes,
    const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
