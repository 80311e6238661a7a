// Composite losses: per candidate, and the weighted total. The single terms are operators
// (ops/*_loss.h).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Commitment loss of every candidate: mean over features of (inputs - codes)^2.
///
/// @param inputs  (H, T, D).    @param codes  (H, T, k, D).    @param mask  (H, T), bool; masked
///                tokens give 0.
/// @return        (H, T, k). Gradient to inputs and, where they have one, to codes.
TORCHVQ_API at::Tensor candidate_commitment_loss(
    const at::Tensor& inputs, const at::Tensor& codes,
    const std::optional<at::Tensor>& mask = std::nullopt);

/// Sum of terms times weights; terms of weight 0 are left out, so that a NaN in them has no effect.
///
/// The result is a new tensor: it never aliases a term or state and may be changed in place.
/// With `training` it requires grad even when no term does (a frozen encoder, say), so that a
/// training loop may always call backward(); without, it never does.
TORCHVQ_API at::Tensor weighted_loss(at::TensorList terms, at::ArrayRef<double> weights,
                                     bool training);

/// Both halves of the loss of codes that learn by gradient, see ops/paired_commitment_loss.h; with
/// `training` as weighted_loss(), and without a gradient otherwise.
///
/// @param inputs  (H, T, D).    @param codes  (H, T, D).    @param mask  (H, T), bool.
TORCHVQ_API at::Tensor paired_loss(const at::Tensor& inputs, const at::Tensor& codes,
                                   const std::optional<at::Tensor>& mask, double to_inputs,
                                   double to_codes, bool training);

}  // namespace torchvq::functional
