// kernels/root.h in tensor operators: the same bits on any device.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Square root of positive, normal float64 numbers.
at::Tensor square_root(const at::Tensor& a);

/// Euclidean norm over the last axis of float64 `rows`, added in index order; the axis is dropped.
at::Tensor norm_in_order(const at::Tensor& rows);

}  // namespace torchvq::detail
