// Shared by all kernels of residual_commitment_loss: argument checks and dtypes.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "detail/precision.h"

namespace torchvq::detail {

void check_residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                    at::TensorList codes, const std::optional<at::Tensor>& mask);

void check_residual_commitment_loss_backward(const at::Tensor& grads, at::TensorList inputs,
                                             at::TensorList codes,
                                             const std::optional<at::Tensor>& mask);

/// The dtype of the losses and their gradient; all levels have the same dtypes.
inline at::ScalarType residual_loss_dtype(at::TensorList inputs, at::TensorList codes) {
  return value_dtype(inputs[0], codes[0]);
}

}  // namespace torchvq::detail
