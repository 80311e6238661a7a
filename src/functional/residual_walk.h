// Passes tokens through the levels of a residual stack, independently of how a level chooses codes:
// handles residuals, the random numbers of each level, and the gradient of the stack's output.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/functional/estimate.h>

namespace torchvq::functional {

/// The result of a level.
struct WalkedLevel {
  at::Tensor codes;   ///< added to the sum
  at::Tensor output;  ///< the codes with the level's own gradient, unseen by the next level
};

/// Sums over the levels processed so far.
struct LevelSums {
  at::Tensor codes;
  at::Tensor outputs;  ///< undefined if not requested
};

/// How gradients flow through a stack.
struct StackGradient {
  bool training = false;
  /// Whether the output's gradient is the sum of the levels' gradients, or their mean if it
  /// `averages`, instead of that of one estimator.
  bool estimates_levels = false;
  /// Fraction of a level's gradient that reaches the next one in training, in [0, 1].
  double handed_on = 0;
  /// The single estimator between the inputs and the sum of the codes.
  EstimateOptions estimate;
  bool averages = false;

  /// Whether levels need estimators of their own in training.
  [[nodiscard]] bool needs_levels() const { return estimates_levels || handed_on > 0; }
};

/// The levels that a forward uses, and whether it scores given indices.
struct LevelsInUse {
  int64_t levels = 0;                              ///< if `depth` is not given
  bool scores_targets = false;                     ///< losses are those of given indices
  std::optional<at::Tensor> depth = std::nullopt;  ///< (), int64, if only the device knows
};

/// A gradient from its parts; the reference sums the gradients of levels, and so do estimators that
/// give theirs to the codes.
StackGradient stack_gradient(bool training, bool estimates_levels, double handed_on,
                             const EstimateOptions& estimate, bool vqp_compat);

/// Runs the levels in sequence; each chooses codes for the residual of the previous ones.
///
/// @param sums_outputs  whether to sum outputs as well.
/// @param choose        called with a level's number, its residual, and the sums so far.
LevelSums walk_levels(
    const at::Tensor& inputs, int64_t levels, const StackGradient& gradient, bool sums_outputs,
    const std::function<WalkedLevel(int64_t, const at::Tensor&, const LevelSums&)>& choose);

/// The result of a level whose losses see padding, as the reference passes it on: its output is zero
/// there, so that the residual stays, or its input, so that nothing is left.
///
/// @param residual  (H, T, D), the level's input.
/// @param mask      (H, T), bool.
/// @param zeros     whether the output of padding is zero.
WalkedLevel passed_by_padding(const WalkedLevel& level, const at::Tensor& residual,
                              const at::Tensor& mask, bool zeros);

/// The inputs of a stack with one estimator, for the losses of its levels: their gradient is divided
/// by sum(ratio^n, n < levels).
///
/// The losses of all levels add up in the encoder, where the output's gradient arrives once. With
/// one estimator per level, as in the reference, it arrives once per level, level n with ratio^n of
/// it, and users weigh the losses for that balance.
///
/// @param inputs  (H, T, D).
/// @param levels  levels in use, if `depth` is not given.
/// @param ratio   gain of level n relative to level n - 1.
/// @param depth   (), int64: levels in use, if only the device knows.
at::Tensor balanced(const at::Tensor& inputs, int64_t levels, double ratio = 1,
                    const std::optional<at::Tensor>& depth = std::nullopt);

/// Inputs of balanced(), or what was computed of them, with a gradient that is not divided.
at::Tensor undivided(const at::Tensor& inputs, int64_t levels, double ratio = 1,
                     const std::optional<at::Tensor>& depth = std::nullopt);

/// The inputs of a stack as its one estimator sees them: their gradient is weighted by the share of
/// the levels in use.
///
/// In the reference, whose levels add up, a step of few levels moves the encoder less. With equal
/// weights, steps that drop nearly all levels disturb the others (docs/design/residual.md).
///
/// @param used   levels in use, if `depth` is not given.
at::Tensor weighted(const at::Tensor& inputs, int64_t used, int64_t levels,
                    const std::optional<at::Tensor>& depth = std::nullopt);

/// The inputs of a stack as its levels see them: balanced() in training, unless gradients of levels
/// are summed. A stack that averages these takes the gradient of its output from the same inputs, so
/// they are divided also where targets are scored; in other stacks a loss of targets is not balanced.
at::Tensor compared_inputs(const at::Tensor& inputs, const StackGradient& gradient,
                           const LevelsInUse& used);

/// The tokens that a level has compared with its codes, or the condition of codes that a network
/// computes, as the losses of the level see them: a loss of targets is not balanced, so a division of
/// compared_inputs() is taken back.
at::Tensor scored_inputs(const at::Tensor& compared, const StackGradient& gradient,
                         const LevelsInUse& used);

/// The output of a stack: the sum of its codes with its gradient, which is the same with and
/// without targets to score.
///
/// @param rng  (2,), of the first level.
at::Tensor stack_output(const at::Tensor& inputs, const LevelSums& sums, const at::Tensor& rng,
                        const distributed::Ranks& ranks, const StackGradient& gradient);

/// The generator (2,) of a level: levels that share a codebook draw different
/// numbers from its generator.
at::Tensor level_rng(const at::Tensor& rng, int64_t level, bool shared);

}  // namespace torchvq::functional
