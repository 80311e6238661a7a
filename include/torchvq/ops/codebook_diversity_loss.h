// The codebook diversity loss: minus the entropy of the average soft assignment.
#pragma once

#include <array>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Minus the entropy of the mean code distribution; the minimum, -log(K), is at equal use of all
/// codes.
///
/// Formula      l[n, k] = -|x_n - c_k| (euclidean) or the cosine of x_n and c_k (cosine);
///              p[n] = softmax over k of temperature * l[n, k];
///              P = mean of p[n] over the unmasked tokens of a head;
///              loss = mean over heads of sum_k P_k log(P_k);
///              with u = log P:
///              dl[n, k] = temperature * p[n, k] (u_k - sum_j p[n, j] u_j) / (H * tokens)
/// Parity       `codebook_diversity_loss_weight`, `codebook_diversity_temperature` of the
///              reference, which averages p over batch and heads but not over positions (so with
///              one sequence it spreads each single token over all codes), ignores masks, and
///              clamps P at 1e-5
///
/// @param x            (H, N, D), floating point, any strides: all tokens of batch and positions.
/// @param codebook     (H, K, D), floating point; its dtype may differ from that of x. K >= 1.
/// @param temperature  multiplies the scores, so that larger is sharper; finite and non-negative.
/// @param metric       "euclidean" or "cosine"; for cosine both sides are made unit vectors here.
/// @param mask         (H, N), bool; True marks a real token. Padding may hold anything. Default:
///                     all real.
/// @param totals       (H, K + 2), the sum over ranks of codebook_diversity_totals(): the mean is
///                     then over the tokens of all ranks. Default: those of this process.
/// @return             (), float64 if an argument is float64, else float32.
///
/// Gradient     to x and codebook in closed form, computed by the forward, so that the codebook may
///              be overwritten before backward; once differentiable. 0 between a token and a code
///              it equals.
/// Memory       O(N D + K D): scores exist for a block of tokens at a time.
/// Empty        a head without tokens, or all masked, adds 0 with zero gradient.
/// Non-finite   an unmasked NaN makes the loss NaN.
/// Precision    in float64, rounded once; log P by log-sum-exp, so that no probability underflows.
/// Distributed  with totals of W ranks every rank has the loss of one process with the whole batch,
///              and W times that process's gradient of its own tokens, which data-parallel wrappers
///              average (as all_reduce_differentiable(), but backward communicates nothing).
/// Throws       c10::ValueError for bad shapes, temperature or metric, c10::TypeError for bad
///              dtypes, c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API at::Tensor codebook_diversity_loss(
    const at::Tensor& x, const at::Tensor& codebook, double temperature, c10::string_view metric,
    const std::optional<at::Tensor>& mask = std::nullopt,
    const std::optional<at::Tensor>& totals = std::nullopt);

/// The numbers that ranks add up to share the loss: per head the sum of p over the unmasked tokens
/// (K), their number, and 1. Arguments as above; (H, K + 2), float64 (float32 where the device has
/// no float64); no gradient.
TORCHVQ_API at::Tensor codebook_diversity_totals(
    const at::Tensor& x, const at::Tensor& codebook, double temperature, c10::string_view metric,
    const std::optional<at::Tensor>& mask = std::nullopt);

/// The leaf operator behind codebook_diversity_loss(): loss, gradient to x, gradient to codebook
/// (for an upstream gradient of 1, in the dtype of the loss). `grads` selects the gradients; those
/// not selected have no elements.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor, at::Tensor> codebook_diversity_loss_forward(
    const at::Tensor& x, const at::Tensor& codebook, double temperature, c10::string_view metric,
    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& totals,
    std::array<bool, 2> grads);

}  // namespace torchvq::ops
