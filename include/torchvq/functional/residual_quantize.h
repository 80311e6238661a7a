// One forward of a residual stack between its projections, without steps between the levels:
// search, losses, learning.
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

/// The inputs of a forward apart from the tokens. If all levels share one codebook, `states` has one
/// entry; `step_counts` always has one per level.
struct ResidualQuantizeArguments {
  std::vector<at::Tensor> codebooks;  ///< (H, K, D) of each level that may be in use
  std::vector<CodebookState> states;  ///< of all levels, a shared one once
  std::vector<at::Tensor>
      step_counts;                 ///< (H, K) of all levels, int64: get the tokens of each code
  std::optional<at::Tensor> mask;  ///< (B, N), bool
  /// (), int64, at least 1: the number of levels in use, if only the device knows it. Default: the
  /// number of codebooks.
  std::optional<at::Tensor> depth;
  /// (H, T), int64, for each level in use: target codes; a loss is then the cross-entropy with
  /// them. Default: none.
  std::vector<at::Tensor> targets;
};

/// Options of residual_quantize_(), the same for all levels.
struct ResidualQuantizeOptions {
  /// The order of heads in the tokens; features are last. What masked outputs are matters only to the
  /// reference's diversity loss, which sees what levels leave of padding.
  TORCH_ARG(TokenLayout, layout);
  /// Options of the search of a level; its estimator is used if the output of a level has a
  /// separate gradient.
  TORCH_ARG(QuantizeOptions, search);
  /// Gradient of the output, if one estimator serves the stack; see estimate.h. Default:
  /// "straight_through".
  TORCH_ARG(std::string, estimator) = "straight_through";
  TORCH_ARG(QuantizerLossOptions, losses);
  TORCH_ARG(LearnCodebooksOptions, learning);
  /// Whether the gradient of the output is the sum over the levels instead of one estimator over
  /// the stack. Default: false.
  TORCH_ARG(bool, estimates_levels) = false;
  /// Fraction of a level's gradient that reaches the next one, in [0, 1]. Default: 0.
  TORCH_ARG(double, handed_on) = 0;
  /// Paths that the search keeps, at least 1. Default: 1.
  TORCH_ARG(int64_t, beam) = 1;
  /// See ops/residual_beam_search.h. Default: none.
  TORCH_ARG(std::vector<double>, beam_weights);
  /// Whether the codebooks learn from the tokens. Default: false.
  TORCH_ARG(bool, learns) = false;
  /// Whether the step ends here: counts usage, and advances the generators. Default: false.
  TORCH_ARG(bool, finishes) = false;
  /// Whether a step that does not learn draws random numbers. Default: false.
  TORCH_ARG(bool, draws) = false;
  /// Whether the codes of each level are wanted, beside their sum. Default: false.
  TORCH_ARG(bool, returns_codes) = false;
};

/// Result of residual_quantize_(), for Q levels, of which those in use are computed.
struct ResidualQuantizeStep {
  at::Tensor quantized;  ///< (H, T, D), with the estimator's gradient
  at::Tensor indices;    ///< (H, T, Q), int64; -1 where masked or dropped
  at::Tensor losses;     ///< (Q,), 0 where dropped
  /// If wanted, (H, T, D) of each level walked; zeros where not in use.
  std::vector<at::Tensor> codes;
  std::vector<at::Tensor> totals;  ///< the sums over ranks for the diversity losses; or none
};

/// Searches level after level, each the residual of the one before, with the codes before the step;
/// computes the losses; and, if requested, lets all levels learn with one exchange of statistics.
///
/// @param tokens  (B, N, heads * D), float32 or float64, projected, zeros where masked.
/// @param totals  the sums over ranks of the forward that this one recomputes. Default: none.
///
/// Exact        Levels without an estimator of their own, without sampling and without a beam are searched by
///              residual_encode(), which finds the codes of nearest_code() level by level.
/// Gradient     One estimator between tokens and sum of codes. The losses' gradient to the tokens is divided
///              by the gain that one estimator per level has, sum (1 - handed_on)^n.
TORCHVQ_API ResidualQuantizeStep residual_quantize_(const at::Tensor& tokens,
                                                    const ResidualQuantizeArguments& arguments,
                                                    const ResidualQuantizeOptions& options,
                                                    const std::vector<at::Tensor>& totals = {});

}  // namespace torchvq::functional
