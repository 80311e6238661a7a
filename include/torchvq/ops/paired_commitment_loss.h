// Both halves of the loss of a quantizer whose codes learn by gradient, in one pass.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Two commitment losses of the same pairs: one pulls the codes, the other the tokens.
///
/// Formula      (to_codes + to_x) * mean((x - codes)^2)
///
/// @param x         (H, T, D), floating point.
/// @param codes     (H, T, D), floating point.
/// @param mask      (H, T), bool; True marks a real token. Padding may hold anything.
/// @param to_x      finite and non-negative: what the gradient of x is multiplied with; a half with
///                  weight 0 does not enter.
/// @param to_codes  the same for the gradient of codes.
/// @return          scalar, float64 if x or codes are float64, else float32.
///
/// Gradient     to x, 2 to_x (x - codes) / count; to codes, 2 to_codes (codes - x) / count.
/// Empty        no token, or none unmasked: 0 with zero gradient.
/// Precision, Non-finite, Determinism   as commitment_loss().
/// Throws       c10::ValueError for bad shapes and weights, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                              const std::optional<at::Tensor>& mask, double to_x,
                                              double to_codes);

}  // namespace torchvq::ops
