// kernels/cpu/codebook_average.h in tensor operators: the same bits on any device.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Laplace-smoothed cluster sizes as float64, (H, K).
at::Tensor smoothed_sizes(const at::Tensor& cluster_size, double eps);

/// Sum over the last axis (..., K) to (..., 1), float64: added in fixed point, so the same bits in
/// any order.
at::Tensor order_free_totals(const at::Tensor& values);

/// Rows divided by their norm, in float64 (..., D); zero rows stay zero. `rows` is float32 or
/// float64, D >= 1.
at::Tensor unit_rows(const at::Tensor& rows);

/// unit_rows() by tensor operators, used on devices other than the CPU; declared for its test.
at::Tensor unit_rows_by_operators(const at::Tensor& rows);

/// Codes computed from averages, in the dtype of embed; rows where `keep` (H, K) holds, or whose
/// size is not positive, keep their values.
at::Tensor codes_from_averages(const at::Tensor& embed, const at::Tensor& embed_avg,
                               const at::Tensor& sizes, const at::Tensor& keep, bool unit);

}  // namespace torchvq::detail
