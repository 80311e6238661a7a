// kernels/root.h in tensor operators: the same bits on any device.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Square root of positive, normal float64 numbers.
at::Tensor square_root(const at::Tensor& a);

/// std::sqrt of non-negative float64 numbers, exact to the last bit. at::sqrt on CPU is off by a
/// unit in the last place in 1 % of cases, and other devices differ in other cases.
at::Tensor rounded_root(const at::Tensor& a);

/// Euclidean norm over the last axis of float64 `rows`, added in index order; the axis is dropped.
at::Tensor norm_in_order(const at::Tensor& rows);

}  // namespace torchvq::detail
