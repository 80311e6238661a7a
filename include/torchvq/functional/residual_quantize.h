// One forward of a residual stack between its projections, where nothing of a level's own stands
// between the levels: search, losses, learning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/functional/quantizer_losses.h>

namespace torchvq::functional {

/// What a forward is given besides the tokens. Where several levels share one codebook, `states` and
/// `step_counts` hold one entry and one for each level.
struct ResidualQuantizeArguments {
  std::vector<at::Tensor> codebooks;  ///< (H, K, D) of each level that may be in use
  std::vector<CodebookState> states;  ///< of all levels, a shared one once
  std::vector<at::Tensor>
      step_counts;                 ///< (H, K) of all levels, int64: get the tokens of each code
  std::optional<at::Tensor> mask;  ///< (B, N), bool
  /// (), int64, at least 1: how many levels are in use, where only the device knows. Default: as many
  /// as there are codebooks.
  std::optional<at::Tensor> depth;
  /// (H, T), int64, for each level in use: codes to score; a loss is then the cross-entropy towards
  /// them. Default: none.
  std::vector<at::Tensor> targets;
};

/// Options of residual_quantize_(), for all levels alike.
struct ResidualQuantizeOptions {
  /// Where heads lie in the tokens; features are last.
  TORCH_ARG(TokenLayout, layout);
  /// How a level searches; its estimator is in use where a level's output has a gradient of its own.
  TORCH_ARG(QuantizeOptions, search);
  /// Gradient of the output, if one estimator serves the stack; see estimate.h. Default:
  /// "straight_through".
  TORCH_ARG(std::string, estimator) = "straight_through";
  TORCH_ARG(QuantizerLossOptions, losses);
  TORCH_ARG(LearnCodebooksOptions, learning);
  /// Whether the output's gradient is the sum of the levels' own instead of one estimator over the
  /// stack. Default: false.
  TORCH_ARG(bool, estimates_levels) = false;
  /// Fraction of a level's gradient that reaches the next one, in [0, 1]. Default: 0.
  TORCH_ARG(double, handed_on) = 0;
  /// Paths kept between levels, at least 1. Default: 1.
  TORCH_ARG(int64_t, beam) = 1;
  /// See ops/residual_beam_search.h. Default: none.
  TORCH_ARG(std::vector<double>, beam_weights);
  /// Whether the codebooks learn from the tokens. Default: false.
  TORCH_ARG(bool, learns) = false;
  /// Whether the step ends here: uses are counted, and the next draws are new ones. Default: false.
  TORCH_ARG(bool, finishes) = false;
  /// Whether a step that does not learn takes numbers from the generators. Default: false.
  TORCH_ARG(bool, draws) = false;
};

/// Result of residual_quantize_(), Q levels, of which those in use are walked.
struct ResidualQuantizeStep {
  at::Tensor quantized;            ///< (H, T, D), with the estimator's gradient
  at::Tensor indices;              ///< (H, T, Q), int64; -1 where masked or dropped
  at::Tensor losses;               ///< (Q,), 0 where dropped
  std::vector<at::Tensor> codes;   ///< (H, T, D) of each level walked; zeros where not in use
  std::vector<at::Tensor> totals;  ///< what ranks have added up for the diversity losses; or none
};

/// Searches level after level, each the residual of the one before, with the codes as they are; scores; and,
/// where the options say so, lets all levels learn, by one exchange of statistics.
///
/// @param tokens  (B, N, heads * D), float32 or float64, projected, zeros where masked.
/// @param totals  what the ranks added up in the forward that this one repeats. Default: none.
///
/// Exact        Levels without an estimator of their own, without sampling and without a beam are searched by
///              residual_encode(), which finds what nearest_code() finds level by level.
/// Gradient     One estimator between tokens and sum of codes. The losses' gradient to the tokens is divided
///              by the gain that one estimator per level has, sum (1 - handed_on)^n (balanced()).
TORCHVQ_API ResidualQuantizeStep residual_quantize_(const at::Tensor& tokens,
                                                    const ResidualQuantizeArguments& arguments,
                                                    const ResidualQuantizeOptions& options,
                                                    const std::vector<at::Tensor>& totals = {});

/// The inputs of a stack with one estimator, as the losses of its levels see them.
///
/// The losses of all levels add up in the encoder, where the output's gradient arrives once. With one estimator per
/// level, as in the reference, it arrives sum(handed_on^n) times, so once per level where a level hands on all of its
/// gradient, and users weigh the losses for that balance. So the gradient of the losses is divided by it.
///
/// @param inputs  (H, T, D).
/// @param levels  levels in use, where no tensor says so.
/// @param depth   (), int64: levels in use, where only the device knows.
TORCHVQ_API at::Tensor balanced(const at::Tensor& inputs, int64_t levels, double handed_on = 1,
                                const std::optional<at::Tensor>& depth = std::nullopt);

}  // namespace torchvq::functional
