// One training step of a stack of SimVQ whose transforms are linear layers, between its projections.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// A level of a stack: its codes are `frozen @ weight^T + bias`.
struct LinearLevel {
  at::Tensor frozen;               ///< (K, W)
  at::Tensor weight;               ///< (D, W)
  std::optional<at::Tensor> bias;  ///< (D,)
  double to_inputs = 0;            ///< weights of both halves of its loss, see paired_loss()
  double to_codes = 0;
};

/// Result of residual_linear_quantize().
struct ResidualLinearStep {
  at::Tensor total;               ///< (B, N, D), the sum of the codes of all levels
  at::Tensor indices;             ///< (B, N, Q), -1 where masked
  at::Tensor losses;              ///< (Q,), weighted
  std::vector<at::Tensor> codes;  ///< (B, N, D) of each level, without a gradient
};

/// Each level takes the nearest of its codes to the residual that the levels before have left, which
/// has no gradient but that of the tokens.
///
/// @param tokens     (B, N, D), floating point; results are float32 or float64.
/// @param levels     at least one.
/// @param mask       (B, N), bool: True for real tokens; the others do not count in the losses.
/// @param estimator  the gradient of the codes of a level to its residual, see functional/estimate.h;
///                   "none": the total has no gradient.
///
/// Gradient     of total to tokens the sum over levels, by the estimator; of losses to tokens, weights
///              and biases.
/// Ties, Empty, Non-finite   as linear_quantize() and paired_loss().
/// Throws       c10::ValueError for bad shapes and names, c10::TypeError for bad dtypes.
TORCHVQ_API ResidualLinearStep residual_linear_quantize(const at::Tensor& tokens,
                                                        const std::vector<LinearLevel>& levels,
                                                        const std::optional<at::Tensor>& mask,
                                                        const std::string& estimator);

}  // namespace torchvq::functional
