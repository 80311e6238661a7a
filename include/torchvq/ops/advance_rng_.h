// The step of a counter-based generator.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Counts one training step, so that the next draws are new ones.
///
/// Formula   rng[1] += 1; with a mask by any(mask != 0): a step without tokens does not count
///
/// @param rng   (2,), int64: seed and step; the step is overwritten.
/// @param mask  any shape, bool or an integer (tokens of each code). Default: the step counts.
///
/// Gradient     none.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API void advance_rng_(const at::Tensor& rng,
                              const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
