// Shared by all kernels of residual_lookup: argument checks and dtypes.
#pragma once

#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Inputs, codes, and the sum of the codes.
using ResidualLookupTensors =
    std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, at::Tensor>;

void check_residual_lookup(const at::Tensor& x, at::TensorList codebooks,
                           const at::Tensor& indices);

/// The dtype of residuals and sums: float64 for float64, otherwise float32.
inline at::ScalarType residual_lookup_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace torchvq::detail
