// Shared by all kernels of residual_decode: argument checks and dtypes.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_residual_decode(const at::Tensor& indices, at::TensorList codebooks);

/// The dtype to which the dtypes of the codebooks promote.
at::ScalarType residual_decode_dtype(at::TensorList codebooks);

/// The dtype of the sum: float64 for float64, otherwise float32.
inline at::ScalarType residual_sum_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace torchvq::detail
