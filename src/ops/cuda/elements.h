// Element types of tensors in the naming of the kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cuda/element_type.h"

namespace torchvq::detail {

/// A contiguous tensor of a type that kernels read: 8-bit floating point becomes float32.
inline at::Tensor elements_of(const at::Tensor& x) {
  const auto type = x.scalar_type();
  const bool read =
      type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
  return (read ? x : x.to(at::kFloat)).contiguous();
}

/// The type of a tensor returned by elements_of.
inline kernels::ElementType element_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return kernels::ElementType::kDouble;
    case at::kHalf:
      return kernels::ElementType::kHalf;
    case at::kBFloat16:
      return kernels::ElementType::kBFloat16;
    default:
      return kernels::ElementType::kFloat;
  }
}

}  // namespace torchvq::detail
