// Decoding of finite scalar quantization: levels and codes of indices.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// The digits of an index: level_indices[*, j] = index / (product of levels before j) mod
/// levels[j].
///
/// @param indices  (*), int64, in [0, product of levels), or -1, whose digits are all -1.
/// @param levels   as for scalar_quantize().
/// @return         (*, D), int64.
///
/// Gradient     none.
/// Throws       c10::IndexError for an index outside (on CPU; other devices check nothing and give
///              digits of the remainder), c10::ValueError for bad levels, c10::TypeError for bad
///              dtypes.
TORCHVQ_API at::Tensor scalar_level_indices(const at::Tensor& indices, at::IntArrayRef levels);

/// The inverse of scalar_level_indices().
///
/// @param level_indices  (*, D), int64, level_indices[*, j] in [0, levels[j]); a negative one makes
///                       the index -1.
/// @return               (*), int64.
///
/// Throws       c10::IndexError for a level outside (on CPU), c10::ValueError, c10::TypeError.
TORCHVQ_API at::Tensor scalar_indices(const at::Tensor& level_indices, at::IntArrayRef levels);

/// The codes of indices, with the bits that scalar_quantize() returned.
///
/// @param indices    (*), int64; -1 gives zeros.
/// @param symmetric  whether `bound` was symmetric_tanh or symmetric_clamp.
/// @param dtype      of the codes: at::kFloat or at::kDouble.
/// @return           (*, D).
///
/// Throws       as scalar_level_indices().
TORCHVQ_API at::Tensor scalar_decode(const at::Tensor& indices, at::IntArrayRef levels,
                                     bool symmetric = false, at::ScalarType dtype = at::kFloat);

/// The indices of codes, the inverse of scalar_decode(); each feature counts as its nearest level.
///
/// @param codes      (*, D), floating point.
/// @param symmetric  as for scalar_decode().
/// @return           (*), int64; 0 where a feature is NaN.
///
/// Gradient     none.
/// Throws       c10::ValueError for bad shapes and levels, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor scalar_code_indices(const at::Tensor& codes, at::IntArrayRef levels,
                                           bool symmetric = false);

}  // namespace torchvq::ops
