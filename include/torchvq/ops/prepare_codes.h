// A copy of a codebook for the fast search of a few rows (docs/design/search.md, "Prepared codes").
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Copies codes in 8 bits, with a bound on the rounding error of each. For a few rows
/// `residual_encode` reads the copy instead of the codes and finds the same indices, because the
/// codes themselves decide at the end.
///
/// A copy belongs to the current codes. After a change of the codes, prepare them again: a copy of
/// other codes of the same shape gives other indices, and no check notices.
///
/// @param codebook  (K, D) or (H, K, D), floating point, any strides. K >= 1, D >= 1.
/// @return          (bytes,) or (H, bytes), uint8, on the device of the codebook, in a format of
///                  one version and byte order of this library. Takes a quarter of the memory of
///                  float32, plus 16 bytes per code. Empty below 16 features and above 16384, where
///                  a copy would not pay.
///
/// Dtype        half precision as float32. float64 codes are searched in float64: their copy is not
///              used.
/// Gradient     none.
/// Non-finite   a code with NaN or infinity never passes the screening. With a code of a norm above
///              1e12 the copy is not used, and the search is the ordinary one.
/// Determinism  the same bytes on every device, instruction set and thread count.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
/// Example      auto options = ops::ResidualEncodeOptions().prepared({ops::prepare_codes(codebook)});
TORCHVQ_API at::Tensor prepare_codes(const at::Tensor& codebook);

}  // namespace torchvq::ops
