// kernels/fixed_point.h in tensor operators.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// sums (W, H, K, D) and exponents (H, K) as float64 (H, K, D), ready to be rounded to `dtype`.
at::Tensor decode_to_double(const at::Tensor& sums, const at::Tensor& exponents,
                            at::ScalarType dtype);

/// Throws unless sums is int64 (1 or 2, H, K, D) and exponents is int32 (H, K).
void check_sums(const char* op, const at::Tensor& sums, const at::Tensor& exponents);

}  // namespace torchvq::detail
