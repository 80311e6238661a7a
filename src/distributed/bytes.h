#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::distributed {

/// The elements of a tensor in logical order, as bytes.
inline at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.contiguous().reshape({-1}).view(at::kByte);
}

}  // namespace torchvq::distributed
