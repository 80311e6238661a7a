// What gradients of lookups add up, on any device with the same bits.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Sums of the rows (N, D) with each index (N,), in [0, size): (size, D) float64, added in fixed
/// point, so the same bits in any order, where index_add_ on a GPU adds as its threads come. An
/// element that is not finite makes its sum NaN. A device without float64 adds in float32, in its
/// own order.
at::Tensor sum_by_index(const at::Tensor& rows, const at::Tensor& indices, int64_t size);

}  // namespace torchvq::detail
