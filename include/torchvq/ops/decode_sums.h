// Fixed-point sums of code_statistics() as floating point.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Converts fixed-point sums to floating point, rounded once.
///
/// Formula      (sums[0] + sums[1] / 2^32) * 2^(exponents - 30), sums[1] = 0 if there is one word
///
/// @param sums       (W, H, K, D), int64, W = 1 or 2, from code_statistics(); |sums[0]| < 2^62 for
///                   W = 2.
/// @param exponents  (H, K), int32, from the same call.
/// @param dtype      float32 or float64.
/// @return           (H, K, D), dtype.
///
/// Gradient     none.
/// Precision    the nearest number of `dtype` to the exact value; two words to float32 are rounded
///              to float64 first.
/// Determinism  the same bits on every device.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor decode_sums(const at::Tensor& sums, const at::Tensor& exponents,
                                   at::ScalarType dtype);

}  // namespace torchvq::ops
