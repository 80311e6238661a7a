// The nearest of codes that a linear map makes of frozen ones (SimVQ), as one operator.
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// nearest_code() among frozen codes under a linear map.
///
/// Formula      codebook = frozen @ weight^T + bias; index[t] = argmin_k |x[t] - codebook[k]|^2
/// Paper        Zhu et al. 2024, SimVQ, arXiv:2411.02038
///
/// @param x       (1, T, D), floating point.
/// @param frozen  (K, W), floating point; K >= 1.
/// @param weight  (D, W), of the dtype of frozen.
/// @param bias    (D,), of the same. Default: none.
/// @return        codes (1, T, D) and indices (1, T), as of nearest_code().
///
/// Gradient     of codes to weight and bias. Of fewer tokens than codes the product runs over
///              tokens, not over codes: the sum is the same, its rounding may differ.
/// Ties, Empty, Non-finite   as nearest_code().
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> linear_nearest_code(
    const at::Tensor& x, const at::Tensor& frozen, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace torchvq::ops
