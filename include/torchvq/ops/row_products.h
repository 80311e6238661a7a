// The product of rows with a matrix, in which no row depends on the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// y = x M + offset.
///
/// Libraries of linear algebra add up a row in an order that depends on how many rows there are and on
/// the threads. Here the same tokens have the same bits in any batch, and so on any number of ranks.
///
/// Formula      y[n, j] = offset[j] + sum_i x[n, i] M[i, j], in the order of i
///
/// @param x       (N, D), float32 or float64.
/// @param matrix  (D, M), the dtype of x.
/// @param offset  (M,), the dtype of x.
/// @return        (N, M).
///
/// Gradient     to all; any number of derivatives.
/// Empty        N == 0 gives an empty result, D == 0 the offset.
/// Determinism  on the CPU the same bits for any number of rows and threads, and for every instruction set
///              with a fused multiply-add; on other devices those of torch's product.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor row_products(const at::Tensor& x, const at::Tensor& matrix,
                                    const at::Tensor& offset);

}  // namespace torchvq::ops
