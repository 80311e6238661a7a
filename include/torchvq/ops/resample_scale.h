// The linear maps between a feature map and the tokens of one of its scales.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Averages a feature map over the cells of a grid, or interpolates the tokens of a grid, also those
/// of a convolution.
///
/// Formula   "average", along an axis of N positions and n cells: cell i is the mean of positions
///           [floor(i N / n), ceil((i + 1) N / n));
///           "interpolate": linear along each axis, corners not aligned, the edges repeated;
///           with a kernel, tokens hold the products of each of its taps, rows of the kernel first:
///           out[p] = sum_t m_t[p + t - kernel / 2], m_t interpolated, 0 beyond the edges. If
///           m_t = W_t q this is the convolution of the interpolated q, for the price of its cells;
///           "average_backward" and "interpolate_backward": their transposes
/// Paper     Tian et al. 2024, VAR, arXiv:2404.02905, algorithms 1 and 2
///
/// @param input      a map (B, D, *full) for "average" and "interpolate_backward", tokens (B, L, D)
///                   for the other two; float32 or float64.
/// @param size       the grid, one to three numbers, each at least 1; L is their product.
/// @param full       the positions of the map, as many numbers.
/// @param direction  see the formula.
/// @param kernel     odd sizes along each axis, for "interpolate" and "interpolate_backward"; tokens
///                   are then (B, L, taps * D), taps their product. Default: none.
/// @return           tokens (B, L, D), or a map (B, D, *full); the dtype of input.
///
/// Gradient     the transpose; any number of derivatives.
/// Empty        a map without positions gives zeros.
/// Precision    computed in float64 and rounded once.
/// NaN          a NaN or an infinity reaches the cells or positions that have a share of it; on
///              devices other than the CPU all of its axis.
/// Throws       c10::ValueError for bad shapes and an unknown direction, c10::TypeError for bad
///              dtypes.
TORCHVQ_API at::Tensor resample_scale(const at::Tensor& input, at::IntArrayRef size,
                                      c10::SymIntArrayRef full, std::string_view direction,
                                      at::IntArrayRef kernel = {});

}  // namespace torchvq::ops
