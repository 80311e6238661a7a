// Decoding of residual codes: the sum of the codes of all levels.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Adds up the codes of all levels.
///
/// Formula   ((0 + c_0) + c_1) + ..., c_n = codebooks[n][h, indices[h, t, n]], each addition
///           rounded once; an index of -1 adds nothing.
///
/// @param indices    (H, T, q), int64; -1 marks masked tokens and dropped levels.
/// @param codebooks  q >= 1 tensors (H, K_n, D), or (1, K_n, D) or (K_n, D) shared by all heads,
///                   floating point, any strides; K_n >= 1.
/// @return           (H, T, D), in the promoted dtype of the codebooks. Half precision is added up
///                   in float32 and rounded once, at the end.
///
/// Gradient     to each codebook: the sum of the gradients of each code's tokens, in token order.
/// Empty        T == 0 gives an empty result.
/// Determinism  bitwise repeatable, gradient included; the same bits on every device.
/// Throws       c10::IndexError for an index outside [-1, K_n) (on CPU; other devices report it
///              their own way), c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
/// Example      auto x = torchvq::ops::residual_decode(indices, codebooks);
TORCHVQ_API at::Tensor residual_decode(const at::Tensor& indices, at::TensorList codebooks);

}  // namespace torchvq::ops
