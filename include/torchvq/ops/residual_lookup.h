// The inputs and codes of all levels of a residual stack for given indices.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// One entry for each level, from the first to the last.
struct ResidualLookupOutput {
  std::vector<at::Tensor> inputs;  ///< Q of (H, T, D), the input of each level
  std::vector<at::Tensor> codes;   ///< Q of (H, T, D), the chosen codes of each level
  at::Tensor quantized;            ///< (H, T, D), the sum of the codes
};

/// Computes the input and the codes of each level of a residual stack for given indices.
///
/// Formula   r_0 = x, c_q = codebooks[q][h, indices[h, t, q]], r_(q+1) = r_q - c_q,
///           quantized = ((0 + c_0) + c_1) + ..., each operation rounded once
///
/// @param x          (H, T, D), floating point, any strides.
/// @param codebooks  Q >= 1 tensors (H, K_q, D), or (1, K_q, D) or (K_q, D) shared by all heads,
///                   floating point, any strides; K_q >= 1.
/// @param indices    (H, T, Q), int64.
/// @return           inputs, codes and their sum, in the dtype of x; float32 for half precision. Each
///                   tensor has its own memory.
///
/// Gradient     none: the values serve losses and learning.
/// Non-finite   a token with a NaN or an infinity at a level has NaN as its code there.
/// Empty        T == 0 gives empty results.
/// Determinism  bitwise repeatable; the same bits on every device.
/// Throws       c10::IndexError for an index outside [0, K_q) (on CPU; other devices report it in
///              another way), c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
/// Example      auto [inputs, codes, sum] = torchvq::ops::residual_lookup(x, codebooks, indices);
TORCHVQ_API ResidualLookupOutput residual_lookup(const at::Tensor& x, at::TensorList codebooks,
                                                 const at::Tensor& indices);

}  // namespace torchvq::ops
