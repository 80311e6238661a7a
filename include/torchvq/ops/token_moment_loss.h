// The loss of token_moments.h for the tokens of one process, as one operator.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/ops/token_moments.h>

namespace torchvq::ops {

/// moment_loss() of token_moments().
///
/// @param x        (*, D), floating point.
/// @param targets  what statistics are pulled to, and how much each counts.
/// @param mask     (*), bool; True marks a real token. Padding may hold anything.
/// @return         loss (), and statistics (D): float64 for float64 x, otherwise float32.
///
/// Gradient     of the loss to x; once differentiable.
/// Empty, Non-finite, Precision, Determinism   as token_moments() and moment_loss().
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes,
///              c10::NotImplementedError in backward with create_graph=True.
TORCHVQ_API MomentLoss token_moment_loss(const at::Tensor& x, const MomentTargets& targets,
                                         const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
