// Commitment by classification: the cross-entropy of each token's scores with its code as target.
#pragma once

#include <array>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Mean cross-entropy between the scores of tokens against all codes and their target codes.
///
/// Formula      l[n, k] = -|x_n - c_k| (euclidean) or the cosine of x_n and c_k (cosine);
///              loss = mean over counted tokens of log(sum_k exp l[n, k]) - l[n, target_n];
///              dl[n, k] = (softmax(l)[n, k] - [k = target_n]) / count
/// Parity       `commitment_use_cross_entropy_loss` of the reference, which accepts only sequences
///
/// A token counts if its target is not -1 and its mask is True; others may hold anything.
///
/// @param x         (H, N, D), floating point, any strides.
/// @param codebook  (H, K, D), floating point; its dtype may differ from that of x. K >= 1.
/// @param targets   (H, N), int64 in [-1, K); -1 is ignored.
/// @param metric    "euclidean" or "cosine"; for cosine both sides are made unit vectors here.
/// @param mask      (H, N), bool; True marks a real token. Default: all real.
/// @return          (), float64 if an argument is float64, else float32.
///
/// Gradient     to x and codebook in closed form, computed by the forward, so that the codebook may
///              be overwritten before backward; once differentiable. 0 between a token and a code
///              it equals.
/// Memory       O(N D + K D): scores exist for a block of tokens at a time.
/// Empty        no token, or none counted: 0 with zero gradient.
/// Non-finite   a NaN in a counted token makes the loss NaN.
/// Precision    scores, probabilities and sums in float64, rounded once.
/// Throws       c10::ValueError for bad shapes or metric, c10::TypeError for bad dtypes,
///              c10::IndexError for targets outside [-1, K) (on CPU; other devices report it their
///              own way), c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API at::Tensor commitment_cross_entropy(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& targets,
    c10::string_view metric, const std::optional<at::Tensor>& mask = std::nullopt);

/// The leaf operator behind commitment_cross_entropy(): loss, gradient to x, gradient to codebook
/// (for an upstream gradient of 1, in the dtype of the loss). `grads` selects the gradients; those
/// not selected have no elements.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor, at::Tensor> commitment_cross_entropy_forward(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& targets,
    c10::string_view metric, const std::optional<at::Tensor>& mask, std::array<bool, 2> grads);

}  // namespace torchvq::ops
