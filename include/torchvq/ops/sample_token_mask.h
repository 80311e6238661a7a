// A random subset of the real tokens of a batch.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Marks a random subset of the real tokens: floor(fraction * real tokens), at least one if there
/// is any.
///
/// The choice depends on the number of real tokens before a token, not on padding between them, so
/// that x with a mask and x[mask] give the same tokens.
///
/// @param rng       (2,), int64: (seed, step).
/// @param tokens    N.
/// @param fraction  in (0, 1].
/// @param mask      (H, N) or (N,), bool, on the device of rng; rows with the same mask get the
///                  same subset. Default: (N,), all real.
/// @return          the shape of mask, bool.
///
/// Determinism  the same tokens on every device.
/// Throws       c10::ValueError for bad shapes and fractions, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor sample_token_mask(const at::Tensor& rng, c10::SymInt tokens, double fraction,
                                         const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
