// Lookup-free quantization: replaces every feature by its sign; the signs are the bits of an index.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// The nearest code of {-scale, scale}^D.
///
/// Formula      code[d] = scale if x[d] > 0, otherwise -scale;
///              index = sum over d of [x[d] > 0] * 2^(D - 1 - d): the first feature is the most
///              significant bit
/// Paper        Yu et al. 2023, Language Model Beats Diffusion, arXiv:2310.05737, equations 3 and 4
///
/// @param x      (*, D), floating point, any strides; D in [1, 62].
/// @param scale  positive, and finite in the dtype of the codes.
/// @return       codes (*, D), float64 for float64 x, otherwise float32; indices (*), int64.
///
/// Gradient     none; straight_through() gives the codes one.
/// Ties         zero, of either sign, is an unset bit.
/// Exactness    indices depend only on the values of x, not on dtype, device or threads.
/// Non-finite   a row with NaN or infinity gives a code of NaN and index 0.
/// Empty        gives empty results.
/// Throws       c10::ValueError for bad shapes and scales, c10::TypeError for bad dtypes.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> sign_quantize(const at::Tensor& x, double scale = 1);

/// The codes of indices, with the bits that sign_quantize() returned.
///
/// @param indices  (*), int64, in [0, 2^bits), or -1, whose code is zero.
/// @param bits     in [1, 62].
/// @param dtype    of the codes: at::kFloat or at::kDouble.
/// @return         (*, bits).
///
/// Gradient     none.
/// Throws       c10::IndexError for an index outside (on CPU; other devices check nothing and give
///              the lower bits), c10::ValueError for bad bits and scales, c10::TypeError for bad
///              dtypes.
TORCHVQ_API at::Tensor sign_decode(const at::Tensor& indices, int64_t bits, double scale = 1,
                                   at::ScalarType dtype = at::kFloat);

}  // namespace torchvq::ops
