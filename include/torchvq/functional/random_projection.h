// Fixed projections to the spaces of several codebooks.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// The projections of tokens for all codebooks, concatenated.
///
/// Formula   y[..., c, :] = n(x) projections[c]; n is the layer norm without weights (eps 1e-5), or
///           the identity
/// Paper     Chiu et al. 2022, BEST-RQ, arXiv:2202.01855, section 3.1
///
/// @param x            (*, D), floating point.
/// @param projections  (C, D, E), floating point; converted to the dtype of x unless it is wider.
/// @param norm         whether to normalise x first.
/// @return             (*, C * E), float32 (float64 for float64 x) under any autocast.
///
/// Gradient     to both.
/// Non-finite   a row of x with a NaN or infinity gives NaN, without norm also infinities, and does
///              not affect others.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor random_projection(const at::Tensor& x, const at::Tensor& projections,
                                         bool norm = true);

/// Random projections (C, D, E), float32, from torch's generator: normal with the variance
/// 2 / (D + E) of Xavier's rule, as in the paper; with `vqp_compat` that of the rule for all
/// projections as one tensor, 2 / (E (D + C)), as in vector-quantize-pytorch.
TORCHVQ_API at::Tensor random_projections(int64_t codebooks, int64_t dim, int64_t codebook_dim,
                                          bool vqp_compat = false);

}  // namespace torchvq::functional
