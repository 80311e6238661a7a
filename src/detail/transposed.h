// Tokens of inputs with features first, in contiguous memory: torch copies a transposed tensor
// element by element, which takes as long as a search of some hundred codes.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// x (B, R, C) with its last axes exchanged: (B, C, R). Where x is contiguous, readable and large
/// enough, of a floating dtype of 32 or 16 bits, a contiguous copy that a kernel makes, and so is
/// its gradient; otherwise a view. Differentiable any number of times.
at::Tensor transposed(const at::Tensor& x);

/// x (B, R, C) in contiguous memory: a copy that the kernel makes if it is a transposed tensor.
at::Tensor contiguous_rows(const at::Tensor& x);

}  // namespace torchvq::detail
