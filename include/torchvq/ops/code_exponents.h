// Fixed-point exponents of a codebook: the scale at which code_statistics() adds up tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// The exponent at which the tokens of each code are added up.
///
/// Formula      own[k] = smallest e with max|codebook[h, k]| <= 2^e;
///              e[h, k] = max(own[k], floor(mean of own over the codes of head h))
///              a zero or non-finite code is left out of the mean, and its own[k] is that mean (0
///              if no code is left)
///
/// @param codebook  (H, K, D), floating point, any strides. K >= 1, D >= 1.
/// @return          (H, K), int32, within [-960, 990].
///
/// Gradient     none.
/// Determinism  integers; the same on every device.
/// Distributed  a pure function of replicated state: every rank computes the same without
///              communication.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor code_exponents(const at::Tensor& codebook);

}  // namespace torchvq::ops
