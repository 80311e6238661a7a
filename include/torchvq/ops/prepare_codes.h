// A copy of a codebook for the fast search of a few rows (docs/design/search.md, "Prepared codes").
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Copies codes in 8 bits, with what rounding has changed in each. `residual_encode` reads the copy in
/// their place for a few rows and finds the same indices: at the end the codes themselves decide.
///
/// A copy is of the codes as they are now. Whoever changes them prepares them again: a copy of other codes
/// of the same shape gives other indices, and nothing notices.
///
/// @param codebook  (K, D) or (H, K, D), floating point, any strides. K >= 1, D >= 1.
/// @return          (bytes,) or (H, bytes), uint8, on the device of the codebook: for one version and byte
///                  order of this library. A quarter of the memory in float32, and 16 bytes a code. No bytes
///                  below 16 features or above 16384, where it would not pay.
///
/// Dtype        half precision as float32. float64 codes are searched in float64: their copy serves nothing.
/// Gradient     none.
/// Non-finite   a code with NaN or infinity is never screened for. Codes of a norm beyond 1e12 leave the copy
///              without use, and the search is the ordinary one.
/// Determinism  the same bytes on every device, instruction set and thread count.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
/// Example      auto options = ops::ResidualEncodeOptions().prepared({ops::prepare_codes(codebook)});
TORCHVQ_API at::Tensor prepare_codes(const at::Tensor& codebook);

}  // namespace torchvq::ops
