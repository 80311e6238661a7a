// The walk of a residual stack through its levels, whoever chooses the codes of a level: what a level
// hands on, which numbers it draws, and what gradient the output of the stack has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/functional/estimate.h>

namespace torchvq::functional {

/// What a level hands to the walk.
struct WalkedLevel {
  at::Tensor codes;   ///< join the sum
  at::Tensor output;  ///< the same with the level's own gradient; the next level no longer sees it
};

/// What the levels walked so far add up to.
struct LevelSums {
  at::Tensor codes;
  at::Tensor outputs;  ///< undefined where nobody asks for them
};

/// How gradients go through a stack.
struct StackGradient {
  bool training = false;
  /// Whether the output's gradient is the sum of the levels' own, instead of that of one estimator.
  bool estimates_levels = false;
  /// Fraction of a level's gradient that reaches the next one in training, in [0, 1].
  double handed_on = 0;
  /// The one estimator between the inputs and the sum of the codes.
  EstimateOptions estimate;

  /// Whether a level that trains needs an estimator of its own.
  [[nodiscard]] bool needs_levels() const { return estimates_levels || handed_on > 0; }
};

/// Level after level chooses codes for what the levels before have left.
///
/// @param sums_outputs  whether outputs are added up, too.
/// @param choose        of a level's number, what is left for it, and the sums so far.
LevelSums walk_levels(
    const at::Tensor& inputs, int64_t levels, const StackGradient& gradient, bool sums_outputs,
    const std::function<WalkedLevel(int64_t, const at::Tensor&, const LevelSums&)>& choose);

/// The inputs of a stack as the losses of its levels see them; see balanced(). Codes to score leave no
/// loss to balance.
at::Tensor compared_inputs(const at::Tensor& inputs, const StackGradient& gradient, int64_t levels,
                           bool scores_targets,
                           const std::optional<at::Tensor>& depth = std::nullopt);

/// The output of a stack: the sum of its codes with its gradient.
///
/// @param rng  (2,), of the first level.
at::Tensor stack_output(const at::Tensor& inputs, const LevelSums& sums, const at::Tensor& rng,
                        const distributed::Ranks& ranks, const StackGradient& gradient);

/// The generator (2,) of a level: levels that share a codebook draw different numbers from it.
at::Tensor level_rng(const at::Tensor& rng, int64_t level, bool shared);

}  // namespace torchvq::functional
