// Sums for the gradients of lookups, with the same bits on any device.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Sums of the rows (N, D) with each index (N,), in [0, size): (size, D) float64. They are added in
/// fixed point and so have the same bits in any order, unlike index_add_ on a GPU, whose order
/// depends on thread scheduling. An element that is not finite makes its sum NaN. A device without
/// float64 adds in float32, in its own order.
at::Tensor sum_by_index(const at::Tensor& rows, const at::Tensor& indices, int64_t size);

}  // namespace torchvq::detail
