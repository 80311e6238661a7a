// The dtypes for the arithmetic of estimators and losses (docs/design/estimators-and-losses.md).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <limits>

namespace torchvq::detail {

/// float64 for float64, otherwise float32, half and bfloat16 included: the dtype in which quantizers
/// compute.
inline at::ScalarType compute_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::ScalarType compute_dtype(const at::Tensor& x) { return compute_dtype(x.scalar_type()); }

/// float64 if either is float64, otherwise float32.
inline at::ScalarType value_dtype(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kDouble || b.scalar_type() == at::kDouble ? at::kDouble
                                                                          : at::kFloat;
}

/// Whether a dtype is float16 or bfloat16.
inline bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

/// Half precision as float32; others as they are.
inline at::Tensor widened(const at::Tensor& tensor) {
  return is_half(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

/// Dtype of intermediate sums, distances and probabilities: float64 wherever the device has it.
inline at::ScalarType sum_dtype(const at::Tensor& tensor) {
  return tensor.device().type() == at::kMPS ? at::kFloat : at::kDouble;
}

/// The largest number of a float64 or float32 state.
inline double largest(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::max()
                              : static_cast<double>(std::numeric_limits<float>::max());
}

/// Values in the dtype of a state; float64 values beyond its range are clamped to it.
inline at::Tensor narrowed(const at::Tensor& values, at::ScalarType dtype) {
  if (values.scalar_type() != at::kDouble) return values.to(dtype);
  const double most = largest(dtype);
  return values.clamp(-most, most).to(dtype);
}

/// A float64 sum as a scalar tensor on the CPU, in the dtype of `like`, float32 or float64. Beyond
/// the range it is infinite, while `at::scalar_tensor` would raise an error.
inline at::Tensor rounded_scalar(double value, const at::Tensor& like) {
  auto scalar = at::empty({}, like.options());
  if (like.scalar_type() == at::kDouble) {
    *scalar.mutable_data_ptr<double>() = value;
  } else {
    *scalar.mutable_data_ptr<float>() = static_cast<float>(value);
  }
  return scalar;
}

}  // namespace torchvq::detail
