// Number of tokens of each code, for usage statistics.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Writes the number of tokens of each code, for all levels of a stack.
///
/// Formula   counts[l][h, k] = number of n with indices[l][h, n] == k; all 0 for levels of `counts`
///           beyond those of `indices`
///
/// @param counts   per level (H, K), int64, contiguous; overwritten.
/// @param indices  per level (H, N), int64, -1 for tokens that are left out; at most as many as
///                 `counts`.
///
/// Gradient     none.
/// Empty        no tokens give zeros.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes, c10::IndexError for
///              an index outside [-1, K), before anything is written (CPU).
TORCHVQ_API void count_codes_(at::TensorList counts, at::TensorList indices);

}  // namespace torchvq::ops
