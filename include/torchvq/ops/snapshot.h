// A copy that compilers cannot optimise away.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Copies a codebook so that backward can use it after the forward has overwritten the original.
///
/// A compiler recomputes a plain `clone` in backward, from the buffer that has been updated
/// meanwhile; it saves the result of this opaque operator instead
/// (docs/design/estimators-and-losses.md).
///
/// Formula      y = codebook, bit for bit, contiguous
///
/// @param codebook  any shape and dtype.
/// @return          the same shape and dtype, contiguous, sharing no memory.
///
/// Gradient     identity.
TORCHVQ_API at::Tensor snapshot(const at::Tensor& codebook);

}  // namespace torchvq::ops
