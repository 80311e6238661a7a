// Zeros of which only a few are ever written.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Zeros (int64, CPU) whose pages the system provides on the first write: untouched pages cost
/// nothing. If most of them are written, at::zeros is faster.
at::Tensor untouched_zeros(at::IntArrayRef sizes);

}  // namespace torchvq::detail
