#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <algorithm>

namespace torchvq::distributed {

/// The first `size` rows of `values`, padded with rows of `fill`, because ranks must send
/// tensors of the same shape.
inline at::Tensor padded(const at::Tensor& values, int64_t size, const at::Scalar& fill) {
  auto shape = values.sizes().vec();
  shape[0] = size;
  auto result = values.new_full(shape, fill);
  const int64_t count = std::min(size, values.size(0));
  result.narrow(0, 0, count).copy_(values.narrow(0, 0, count));
  return result;
}

}  // namespace torchvq::distributed
