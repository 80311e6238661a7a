// Quantization of tokens: the search for codes, and the gradient of an estimator.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Options of quantize().
struct QuantizeOptions {
  /// Distance: "euclidean" or "cosine". Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// Gradient of the output, see estimate.h: "straight_through", "rotation_trick",
  /// "directional_reparam", "gumbel", or "none" (the output is the code, with gradient only to the
  /// codebook). Default: "straight_through".
  TORCH_ARG(std::string, estimator) = "straight_through";
  /// Return the k nearest codes per token. Default: one, without a candidate axis.
  TORCH_ARG(std::optional<int64_t>, topk) = std::nullopt;
  /// Sample codes from softmax(logits / temperature) instead of taking the nearest; 0 or less takes
  /// the nearest. Default: nearest.
  TORCH_ARG(std::optional<double>, temperature) = std::nullopt;
  /// (H, T) int64 in [0, K): indices that are already chosen; there is no search then. Default:
  /// none.
  TORCH_ARG(std::optional<at::Tensor>, chosen);
  /// Temperature of the softmax through which "gumbel" sends its gradient, above 0. Default: 1.
  TORCH_ARG(double, gradient_temperature) = 1.0;
  /// Variance of the noise on the direction of "directional_reparam", 0 or more. Default: 0.005.
  TORCH_ARG(double, variance) = 0.005;
  /// Extra gradient of the synchronous update, nu in Huh et al. 2023, in [0, 1]. Default: 0.
  TORCH_ARG(double, sync_update_v) = 0.0;
};

/// Result of quantize().
struct QuantizeOutput {
  /// (H, T, D) or (H, T, k, D), float32 (float64 for float64 input): the values of the codes, with
  /// the gradient of the estimator.
  at::Tensor quantized;
  /// (H, T) or (H, T, k), int64; -1 where masked.
  at::Tensor indices;
  /// As quantized: the chosen codes, with gradient to the codebook.
  at::Tensor codes;
  /// (H, T, D): the vectors that are compared with codes: x, or its unit vectors for the cosine
  /// metric.
  at::Tensor inputs;
};

/// Quantizes tokens against a codebook.
///
/// @param x                (H, T, D), floating point, any strides.
/// @param codebook         (H, K, D), or codes of each token (H, T, K, D) for implicit codebooks.
/// @param rng  (2,), int64: seed and step for sampling and noise.
/// @param mask             (H, T), bool: tokens to leave out; their index is -1.
///
/// Gradient     that of the estimator.
/// Ties         lowest index wins.
/// Empty        T == 0 gives empty results.
/// Throws       c10::ValueError for bad shapes and options, c10::TypeError for bad dtypes.
TORCHVQ_API QuantizeOutput quantize(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& rng,
                                    const std::optional<at::Tensor>& mask = std::nullopt,
                                    const QuantizeOptions& options = {});

}  // namespace torchvq::functional
