// Evaluation in one call: from the layouts of networks to codes and back, without projections.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/functional/layout.h>

namespace torchvq::functional {

/// Options of evaluate().
struct EvaluateOptions {
  /// Distance: "euclidean" or "cosine". Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// The order of features and heads in x.
  TORCH_ARG(TokenLayout, layout);
};

/// Result of evaluate().
struct EvaluateOutput {
  at::Tensor quantized;  ///< as x: its layout and dtype
  at::Tensor indices;    ///< (B, *), with several heads (B, *, heads); int64, -1 where masked
  at::Tensor loss;       ///< scalar 0, float32 (float64 for float64 input)
};

/// pack_tokens, split_heads, quantize, merge_heads and unpack_tokens in one call: small inputs cost
/// little more than the search.
///
/// @param x         (B, *, heads * D), or as the options say; floating point, any strides.
/// @param codebook  (H, K, D), H = heads with separate codebooks, else 1.
/// @param rng       (2,), int64; passed to quantize(), which draws nothing here.
/// @param mask      (B, N), bool, true for real tokens.
///
/// Gradient     to the codebook, by the codes chosen; none to x except where it fills masked
///              tokens.
/// Ties, empty  as quantize().
/// Throws       as quantize() and the functions of layout.h.
TORCHVQ_API EvaluateOutput evaluate(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& rng,
                                    const std::optional<at::Tensor>& mask = std::nullopt,
                                    const EvaluateOptions& options = {});

}  // namespace torchvq::functional
