// The greedy evaluation pass of a residual stack.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The result of greedy evaluation.
struct Encoded {
  at::Tensor quantized;  ///< (H, T, D), the sum of the codes, level by level
  at::Tensor indices;    ///< (H, T, Q), int64, -1 where masked
};

/// The nearest code of every level for the residual of the levels before.
///
/// @param x          (H, T, D), float32 or float64.
/// @param codebooks  Q tensors (H, K_n, D).
/// @param mask       (H, T), bool.
///
/// Gradient     to the codebooks, by the codes chosen.
/// Non-finite   a row with NaN or infinity gives NaN and index 0.
Encoded encode_levels(const at::Tensor& x, at::TensorList codebooks, const std::string& metric,
                      const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
