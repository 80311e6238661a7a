// The condition of codecs on their parts.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Whether there is a floating-point tensor of this shape.
inline bool has_shape(const at::Tensor& tensor, at::IntArrayRef shape) {
  return tensor.defined() && at::isFloatingType(tensor.scalar_type()) && tensor.sizes() == shape;
}

}  // namespace torchvq::detail
