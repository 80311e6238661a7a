// The straight-through estimator: codes in forward, the identity in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Returns the codes, and passes the gradient to the tokens unchanged.
///
/// Formula      y = codes, bit for bit; dx = dy, dcodes = 0
/// Paper        van den Oord et al. 2017, arXiv:1711.00937; Bengio et al. 2013, arXiv:1308.3432
/// Parity       the reference returns x + (codes - x), which rounds; the gradient is the same
///
/// @param x      (H, N, D), floating point, any strides.
/// @param codes  (H, N, D), floating point; its dtype may differ from that of x.
/// @return       (H, N, D), dtype of codes.
///
/// Gradient     to x: the upstream gradient, in the dtype of x; none to codes.
/// Empty        empty result.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor straight_through(const at::Tensor& x, const at::Tensor& codes);

}  // namespace torchvq::ops
