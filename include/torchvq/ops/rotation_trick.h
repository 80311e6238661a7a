// The rotation trick: codes in forward, a rotation and scaling of the gradient in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Returns the codes, and passes the gradient to the tokens through the rotation that takes each
/// token to its code, times the ratio of their norms.
///
/// Formula      y = codes, bit for bit. With e = x / |x|, q = c / |c|, r = (e + q) / |e + q| and
///              gain = min(|c| / |x|, 100), all constant:
///              dx = gain * (dy - 2 (dy.r) r + 2 (dy.q) e), dcodes = 0
/// Paper        Fifty et al. 2024, arXiv:2410.06424
/// Parity       the reference computes y by the rotation (not the code bit for bit, 0 for a zero
///              token) and does not bound the gain
///
/// Tokens within 1e-3 of the direction opposite to their code, |e + q| < 1e-3, have no r; without r
/// the map is I + 2 q e^T, a reflection that takes e to q: dx = gain * (dy + 2 (dy.q) e).
/// Straight-through (dx = dy) is used where |x| or |c| is below 1e-12 or not finite. So dx is
/// finite and at most 300 |dy| for any x and codes.
///
/// @param x      (H, N, D), floating point, any strides.
/// @param codes  (H, N, D), floating point; its dtype may differ from that of x.
/// @return       (H, N, D), dtype of codes.
///
/// Gradient     to x as above, once differentiable; none to codes.
/// Empty        empty result.
/// Precision    norms and products accumulate in float64.
/// Determinism  bitwise repeatable for any number of threads.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes,
///              c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API at::Tensor rotation_trick(const at::Tensor& x, const at::Tensor& codes);

/// The backward of rotation_trick: dx of the formula above for dy = grad, in the dtype of x.
TORCHVQ_API at::Tensor rotation_trick_backward(const at::Tensor& grad, const at::Tensor& x,
                                               const at::Tensor& codes);

}  // namespace torchvq::ops
