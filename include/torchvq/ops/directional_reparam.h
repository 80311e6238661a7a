// Directional reparametrisation (DiVeQ): replaces the code by a noisy vector that is
// differentiable.
#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Moves each token by exactly its distance from its code, in the direction of the code with some
/// noise. The direction is a constant for autograd; gradients flow through the distance to tokens
/// and codes.
///
/// Formula      v = (c - x) + sqrt(variance) * noise; u = v / |v|, constant; y = x + |c - x| u
///              with t = dy.u and n = (x - c) / |x - c|: dx = dy + t n, dcodes = -t n
/// Paper        DiVeQ, https://openreview.net/forum?id=KRVnpTbx7R
/// Parity       `directional_reparam`, `directional_reparam_variance` of the reference's
///              VectorQuantize
///
/// A token equal to its code gives y = x and n = 0; v = 0 gives u = 0. In evaluation there is no
/// noise: callers return the codes instead.
///
/// @param x         (H, N, D), floating point, any strides.
/// @param codes     (H, N, D), floating point; its dtype may differ from that of x.
/// @param noise     (H, N, D), floating point: standard normal numbers, see random_numbers().
/// @param variance  of the noise, per feature; finite and non-negative.
/// @return          (H, N, D), dtype of x.
///
/// Gradient     to x and codes as above, once differentiable; none to noise.
/// Empty        empty result.
/// Precision    norms and sums in float64, results rounded once.
/// Determinism  bitwise repeatable for any number of threads.
/// Throws       c10::ValueError for bad shapes or variance, c10::TypeError for bad dtypes,
///              c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API at::Tensor directional_reparam(const at::Tensor& x, const at::Tensor& codes,
                                           const at::Tensor& noise, double variance);

/// The backward of directional_reparam: (dx, dcodes) of the formula above for dy = grad.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor> directional_reparam_backward(const at::Tensor& grad,
                                                                            const at::Tensor& x,
                                                                            const at::Tensor& codes,
                                                                            const at::Tensor& noise,
                                                                            double variance);

}  // namespace torchvq::ops
