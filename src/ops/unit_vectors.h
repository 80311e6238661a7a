#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_unit_vectors(const at::Tensor& x);

void check_unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& units);

/// float64 for float64, else float32: the dtype in which quantizers compute.
inline at::ScalarType compute_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace torchvq::detail
