// The sum of the codes that a residual stack has chosen, and the commitment losses of its levels.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

struct ResidualCommitOutput {
  at::Tensor quantized;  ///< (H, T, D), the sum of the codes
  at::Tensor losses;     ///< (Q,), the commitment loss of each level
  at::Tensor residuals;  ///< (Q, H, T, D), what each level leaves, the input of the next one
};

/// Computes the residuals of all levels of a stack for given indices, the sum of their codes, and
/// their commitment losses, in one pass over the tokens.
///
/// Formula   r_0 = x, c_q = codebooks[q][h, indices[h, t, q]], r_(q+1) = r_q - c_q,
///           quantized = ((0 + c_0) + c_1) + ..., each operation rounded once;
///           loss_q = commitment_loss(r_q, c_q, mask)
///
/// @param x          (H, T, D), floating point, any strides.
/// @param codebooks  Q >= 1 tensors (H, K_q, D), or (1, K_q, D) or (K_q, D) shared by all heads,
///                   floating point, any strides; K_q >= 1.
/// @param indices    (H, T, Q), int64.
/// @param mask       (H, T), bool; True marks a real token. Padding has residuals and codes, but no
///                   part in the losses, and may hold anything. Default: all real.
/// @param estimator  gradient of quantized to x: "straight_through", "rotation_trick", or "none".
/// @param gain       divides the gradient of the losses to x: 1, or as many estimators as the one of the stack
///                   replaces. Above 0.
/// @return           quantized, losses and residuals, in the dtype of x; float32 for half precision.
///                   Each tensor has its own memory.
///
/// Gradient     to x, in its dtype: that of the estimator, and of the losses
///              (d_0 + (d_1 + (... + d_(Q-1)))) / gain, d_q the gradient of loss_q to r_q, because
///              r_q is x minus codes, which are constants. Differentiable any number of times but
///              for the rotation, whose products are constants (rotation_trick()). None to codebooks
///              and residuals.
/// Non-finite   a token with a NaN or an infinity at a level has NaN as its code there.
/// Empty        T == 0 gives empty results; no token, or none unmasked: losses 0 with zero gradient.
/// Precision    losses as commitment_loss().
/// Determinism  bitwise repeatable for any number of threads; residuals, sum and gradients have the
///              same bits on every device.
/// Throws       c10::IndexError for an index outside [0, K_q) (on CPU; other devices report it in
///              another way), c10::ValueError for bad shapes or options, c10::TypeError for bad
///              dtypes.
/// Example      auto found = torchvq::ops::residual_commit(x, codebooks, indices);
TORCHVQ_API ResidualCommitOutput
residual_commit(const at::Tensor& x, at::TensorList codebooks, const at::Tensor& indices,
                const std::optional<at::Tensor>& mask = std::nullopt,
                std::string_view estimator = "rotation_trick", double gain = 1);

/// The gradient of the losses of residual_commit() to x: the sum over the levels, from the last to the
/// first, of grads[q] * 2 / count * residuals[q], (H, T, D), over the gain, where count is the number of
/// unmasked values; 0 where masked. `grads` is (Q,) and has the dtype of residuals. `other`, if given, is
/// added: the gradient of quantized to x, (H, T, D), in the dtype of residuals.
TORCHVQ_API at::Tensor residual_commit_backward(
    const at::Tensor& grads, const at::Tensor& residuals,
    const std::optional<at::Tensor>& mask = std::nullopt, double gain = 1,
    const std::optional<at::Tensor>& other = std::nullopt);

}  // namespace torchvq::ops
