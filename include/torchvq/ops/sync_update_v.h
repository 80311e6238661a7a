// Synchronous update: a look-ahead gradient for the encoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Returns the quantized tokens with their gradient multiplied by 1 + v.
///
/// Formula      y = (1 + v) quantized - v sg(quantized): the same bits; dquantized = (1 + v) dy
/// Paper        Huh et al. 2023, arXiv:2305.08842, synchronized update rule
/// Parity       `sync_update_v` of the reference's VectorQuantize, applied to the estimator's
///              output
///
/// @param quantized  (H, N, D) or any shape, floating point.
/// @param v          finite and non-negative; the paper's nu. 0 is the identity.
/// @return           shape and dtype of quantized.
///
/// Gradient     (1 + v) times the upstream gradient.
/// Empty        empty result.
/// Throws       c10::ValueError for a bad v, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor sync_update_v(const at::Tensor& quantized, double v);

}  // namespace torchvq::ops
