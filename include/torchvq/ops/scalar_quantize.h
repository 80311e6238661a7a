// Finite scalar quantization: rounds every feature to one of a few levels.
#pragma once

#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Rounds each feature to its nearest level.
///
/// With L levels, h = (L - 1) / 2, r = floor(L / 2), e = 1/2 for even L, else 0, level i of a
/// feature z and its code are, by `bound`:
///
///   tanh             i = round(1.001 h tanh(z + s) - e) + r, s = atanh(e / (1.001 h));
///                    code = (i - r) / r
///   clamp            the same with clamp(z + s, -1, 1) and s = e / (1.001 h)
///   symmetric_tanh   i = round(h (tanh(z) + 1)); code = i / h - 1
///   symmetric_clamp  i = round(h (clamp(z, -1, 1) + 1)); code = i / h - 1
///
/// Halfway cases round up. The index of a row is the sum over j of i[j] * product of levels before
/// j: the first feature varies fastest.
/// Paper        Mentzer et al. 2023, Finite Scalar Quantization, arXiv:2309.15505 (tanh); Parker et
///              al. 2024, arXiv:2411.19842, eq. 1 (symmetric)
///
/// @param x       (*, D), floating point, any strides, D the number of levels.
/// @param levels  each in [2, 65536], for tanh and clamp in [3, 65536]; their product at most 2^62.
/// @param bound   as above.
/// @return        codes (*, D), float64 for float64 x, otherwise float32; indices (*), int64.
///
/// Gradient     of codes to x: as without rounding, that is, of the bound. Not differentiable
///              again.
/// Exactness    levels are found by comparing z with the numbers at which they change, so indices
///              depend only on the value of z, not on dtype, device, threads or instruction set.
/// Non-finite   a row with NaN or infinity has codes NaN and index 0.
/// Empty        gives empty results.
/// Throws       c10::ValueError for bad shapes, levels and bounds, c10::TypeError for bad dtypes.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> scalar_quantize(const at::Tensor& x,
                                                              at::IntArrayRef levels,
                                                              const std::string& bound = "tanh");

}  // namespace torchvq::ops
