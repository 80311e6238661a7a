// Zeros of which few are ever touched.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Zeros (int64, CPU) whose memory is the system's until it is written: what is not touched costs
/// nothing. Where most of it is written at::zeros is quicker.
at::Tensor untouched_zeros(at::IntArrayRef sizes);

}  // namespace torchvq::detail
