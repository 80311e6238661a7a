// Concatenation outside autocast, which rejects tensors whose half-precision
// dtype differs from its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "detail/without_autocast.h"

namespace torchvq::detail {

/// `at::cat` in the tensors' own dtype.
inline at::Tensor joined(at::TensorList tensors, int64_t dim = 0) {
  const WithoutAutocast without_autocast;
  return at::cat(tensors, dim);
}

/// `at::stack` in the tensors' own dtype.
inline at::Tensor stacked(at::TensorList tensors, int64_t dim = 0) {
  const WithoutAutocast without_autocast;
  return at::stack(tensors, dim);
}

}  // namespace torchvq::detail
