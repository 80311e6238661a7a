// Straight-through estimator with the gradient of a softmax over all codes.
#pragma once

#include <array>
#include <tuple>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Returns the chosen codes; the gradient is that of the mean of all codes under a softmax of the
/// scores.
///
/// Formula      y_n = codebook[indices_n], bit for bit (0 where the index is -1);
///              gradient of (onehot + p - sg(p)) codebook, where
///              p = softmax over k of l[n, k] / temperature, and
///              l[n, k] = -|x_n - c_k| (euclidean) or the cosine of x_n and c_k (cosine):
///              dl[n, k] = p[n, k] (s_k - sum_j p[n, j] s_j) / temperature, s_k = dy_n.c_k,
///              carried on to x and codebook; and to codebook also dy_n at row indices_n
/// Paper        Jang et al. 2017, arXiv:1611.01144 (without noise in the softmax)
/// Parity       `straight_through=True, route_gradients_to_input=False` of the reference, which
///              does not allow a learnable codebook here
///
/// @param x            (H, N, D), floating point, any strides.
/// @param codebook     (H, K, D), floating point; its dtype may differ from that of x. K >= 1.
/// @param indices      (H, N), int64 in [-1, K): any choice, for example of sample_codes(); -1
///                     gives zeros and no gradient.
/// @param temperature  divides the scores; finite and non-negative. 0 means a hard choice: no
///                     gradient to x.
/// @param metric       "euclidean" or "cosine"; for cosine both sides are made unit vectors in the
///                     scores.
/// @return             (H, N, D), dtype of codebook.
///
/// Gradient     as above, once differentiable; uses a copy of the codebook made by the forward, so
///              that the codebook may be overwritten before backward. 0 between a token and a code
///              it equals.
/// Memory       O(N D + K D): scores exist for a block of tokens at a time, in backward only.
/// Empty        N == 0 gives an empty result.
/// Non-finite   the gradient of a token with NaN is NaN.
/// Precision    in float64, rounded once.
/// Throws       c10::ValueError for bad shapes, temperature or metric, c10::TypeError for bad
///              dtypes, c10::IndexError for indices outside [-1, K) (on CPU; other devices report
///              it their own way), c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API at::Tensor gumbel_straight_through(const at::Tensor& x, const at::Tensor& codebook,
                                               const at::Tensor& indices, double temperature,
                                               c10::string_view metric);

/// The backward of gumbel_straight_through(): gradients to x and codebook for dy = grad, in the
/// dtypes of x and codebook. `grads` selects the gradients; those not selected have no elements.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor> gumbel_straight_through_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codebook,
    const at::Tensor& indices, double temperature, c10::string_view metric,
    std::array<bool, 2> grads);

}  // namespace torchvq::ops
