// Conversion between a feature map and the tokens of its scales (VAR).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// The tokens of one scale: averages of a map over the cells of a grid.
///
/// Formula   cell i of n, along an axis of N positions: [floor(i N / n), ceil((i + 1) N / n))
/// Paper     Tian et al. 2024, VAR, arXiv:2404.02905, algorithm 1
///
/// @param map   (B, D, *S), one to three axes of positions, float32 or float64.
/// @param size  the grid, one number per axis, each at least 1.
/// @param mask  (B, *S) bool, or none: averages are over real positions, which may hold anything
///              elsewhere; a cell without any gives 0.
/// @return      (B, L, D), L the cells of the grid, in rows.
///
/// Gradient     to map.
/// Empty        a map without positions gives zeros.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor pool_scale(const at::Tensor& map, at::IntArrayRef size,
                                  const std::optional<at::Tensor>& mask = std::nullopt);

/// Whether cells of a grid have a real position: (B, *S) bool to (B, L).
TORCHVQ_API at::Tensor pool_scale_mask(const at::Tensor& mask, at::IntArrayRef size);

/// The map of the tokens of one scale.
///
/// Formula   m = tokens interpolated linearly along each axis (corners not aligned);
///           out = (1 - ratio) m + ratio (m * weight + bias), the convolution padded with zeros
/// Paper     Tian et al. 2024, VAR, arXiv:2404.02905, algorithm 2; interpolation there is bicubic
///
/// @param tokens  (B, L, D), float32 or float64.
/// @param size    the grid of the tokens, L cells.
/// @param full    the positions of the map, as many axes.
/// @param weight  (D, D, *kernel), odd sizes; any floating dtype, converted to that of the tokens.
/// @param bias    (D,), the same.
/// @param ratio   finite.
/// @return        (B, D, *full), the dtype of tokens.
///
/// Gradient     to tokens, weight and bias.
/// Empty        no batch or no positions: empty.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor spread_scale(const at::Tensor& tokens, at::IntArrayRef size,
                                    c10::SymIntArrayRef full, const at::Tensor& weight,
                                    const at::Tensor& bias, double ratio);

/// The number of scales that a training forward uses, from the counter-based generator `rng` (2,)
/// of seed and step, so that ranks agree without a message: all `scales`, or with probability
/// `dropout` a number uniform in [min_scales, scales). 0-d int64.
TORCHVQ_API at::Tensor drawn_scales(const at::Tensor& rng, int64_t scales, double dropout,
                                    int64_t min_scales);

/// Which of `convolutions` a scale uses: the first and the last of both belong together, those
/// between are spread evenly, halves to even. One each where there are no more scales.
TORCHVQ_API std::vector<int64_t> convolution_of_scales(int64_t scales, int64_t convolutions);

}  // namespace torchvq::functional
