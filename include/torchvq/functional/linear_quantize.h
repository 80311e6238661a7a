// The search of SimVQ where its transform is a linear layer.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/functional/quantize.h>

namespace torchvq::functional {

/// The nearest of frozen codes under a linear map: quantize() with `frozen @ weight^T + bias`.
///
/// @param x          (1, T, D), floating point.
/// @param frozen     (K, W); weight (D, W), bias (D,): see ops/linear_nearest_code.h.
/// @param mask       (1, T), bool: the others have indices -1.
/// @param estimator  the gradient of the output, see functional/estimate.h.
///
/// Gradient     of codes to weight and bias; of the output by the estimator.
/// Throws       c10::ValueError for bad shapes and names, c10::TypeError for bad dtypes.
TORCHVQ_API QuantizeOutput linear_quantize(const at::Tensor& x, const at::Tensor& frozen,
                                           const at::Tensor& weight,
                                           const std::optional<at::Tensor>& bias,
                                           const std::optional<at::Tensor>& mask,
                                           const std::string& estimator);

}  // namespace torchvq::functional
