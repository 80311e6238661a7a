// One forward of VectorQuantize between its projections: search, losses, learning.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/functional/quantizer_losses.h>

namespace torchvq::functional {

/// The inputs of a forward apart from the tokens.
struct VectorQuantizeArguments {
  at::Tensor codebook;             ///< (H, K, D), or codes of each token (H, T, K, D)
  std::optional<at::Tensor> mask;  ///< (B, N), bool
  /// (H, T), int64: target codes; the loss is then the cross-entropy with them.
  std::optional<at::Tensor> targets;
  std::optional<at::Tensor> weight;  ///< see learn_codebooks_()
  /// Mean and variance of the data, then of the codes, (H, 1, D), for codes that are mapped to the
  /// data (affine_codes()); otherwise none.
  std::vector<at::Tensor> affine;
  at::Tensor step_counts;  ///< (H, K), int64: gets the tokens of each code
};

/// Options of vector_quantize_().
struct VectorQuantizeStepOptions {
  /// The order of features and heads in x.
  TORCH_ARG(TokenLayout, layout);
  TORCH_ARG(QuantizeOptions, search);
  TORCH_ARG(QuantizerLossOptions, losses);
  TORCH_ARG(LearnCodebooksOptions, learning);
  /// Whether the codebook learns from the tokens. Default: false.
  TORCH_ARG(bool, learns) = false;
  /// Whether the step ends here: counts usage, and advances the generator. Default: false.
  TORCH_ARG(bool, finishes) = false;
};

/// Result of vector_quantize_().
struct VectorQuantizeStep {
  at::Tensor quantized;  ///< as x: its layout and dtype; of candidates (B, *, k, heads * D)
  at::Tensor indices;    ///< (B, *), with several heads (B, *, heads), of candidates (B, *, k)
  at::Tensor loss;  ///< the weighted sum of the terms, or the cross-entropy alone; or (B, *, k)
  QuantizerLosses terms;
  SearchedTokens searched;           ///< the inputs and results of the search
  std::optional<at::Tensor> totals;  ///< the sums over ranks for the diversity loss
};

/// Searches, computes the losses, and learns if requested.
///
/// @param x       (B, *, heads * D), or in the layout of the options, floating point: projected
///                tokens.
/// @param state   of the codebook; changed if it learns.
/// @param totals  the sums over ranks of the forward that this one recomputes. Default: none.
TORCHVQ_API VectorQuantizeStep
vector_quantize_(const at::Tensor& x, const CodebookState& state,
                 const VectorQuantizeArguments& arguments, const VectorQuantizeStepOptions& options,
                 const std::optional<at::Tensor>& totals = std::nullopt);

/// Ends a training step: counts the use of codes and the step, so that the next draws are new.
///
/// @param step_counts  (H, K) of each codebook, int64; get the tokens of each code.
/// @param indices      (H, T) of each level in use, fewer than codebooks if levels were dropped;
///                     those of candidates (H, T, k) do not count.
/// @param rng          (2,) of each level in use, or of the one codebook that all share.
/// @param counts       tokens per code of all ranks, for each rng, or none if the step did not
///                     learn. A step without a token on any rank is not counted; if the step did
///                     not learn, a rank does not know the tokens of the others, so on several
///                     ranks every step counts.
/// @param masks        (H, T), bool, for each level in use, or none.
/// @param depth        (), int64: levels in use, if only the device knows their number; the
///                     generators of the levels from there on are left alone. Default: all.
TORCHVQ_API void finish_step_(at::TensorList step_counts, at::TensorList indices,
                              at::TensorList rng, at::TensorList counts, at::TensorList masks,
                              bool alone, const std::optional<at::Tensor>& depth = std::nullopt);

}  // namespace torchvq::functional
