// kernels/unused_below.h and kernels/cpu/unused_codes.h in tensor operators: the same bits on any device.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Codes (H, K) whose average in `sizes` says that they are unused, if the batch has no token of theirs.
at::Tensor unused_codes(const at::Tensor& sizes, double decay);

/// The codes (H, K, D), with unused ones moved towards the codes with the most tokens by `step`,
/// float64, (H, K) or a shape that broadcasts to it. `sizes` and `unused` are (H, K).
at::Tensor draw_unused_codes(const at::Tensor& codes, const at::Tensor& sizes,
                             const at::Tensor& unused, const at::Tensor& step, bool unit);

}  // namespace torchvq::detail
