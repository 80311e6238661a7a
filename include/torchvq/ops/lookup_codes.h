// Decoding: looks up the codes of indices.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Looks up codes by index.
///
/// Formula   codes[h, n] = codebook[h, indices[h, n]], and 0 where the index is -1
///
/// @param codebook  (H, K, D), floating point, any strides. K >= 1.
/// @param indices   (H, N), int64; -1 marks a masked or dropped token.
/// @return          (H, N, D), dtype of codebook.
///
/// Gradient     to codebook: the sum of the gradients of each code's tokens, in token order.
/// Empty        N == 0 gives an empty result.
/// Determinism  bitwise repeatable, gradient included.
/// Throws       c10::IndexError for an index outside [-1, K) (on CPU; other devices report it in
///              another way), c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor lookup_codes(const at::Tensor& codebook, const at::Tensor& indices);

}  // namespace torchvq::ops
