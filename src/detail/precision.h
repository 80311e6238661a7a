// Which dtype the arithmetic of estimators and losses uses (docs/design/estimators-and-losses.md).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

namespace torchvq::detail {

/// Dtype of a loss: float64 for float64 input, else float32, half and bfloat16 included.
inline at::ScalarType value_dtype(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kDouble || b.scalar_type() == at::kDouble ? at::kDouble
                                                                          : at::kFloat;
}

/// Dtype of sums, distances and probabilities inside: float64 wherever the device has it.
inline at::ScalarType sum_dtype(const at::Tensor& tensor) {
  return tensor.device().type() == at::kMPS ? at::kFloat : at::kDouble;
}

/// A scalar tensor of a sum in float64. Beyond the range of the options' dtype it is infinite,
/// where `at::scalar_tensor` raises an error.
inline at::Tensor rounded_scalar(double value, const at::TensorOptions& options) {
  return at::scalar_tensor(value, options.dtype(at::kDouble))
      .to(c10::typeMetaToScalarType(options.dtype()));
}

}  // namespace torchvq::detail
