// Finite scalar quantization of tokens with one or several codebooks: the part of FSQ between its
// projections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Options of quantize_scalars().
struct QuantizeScalarsOptions {
  /// Codes per token C; the features are split over them, and the first belong to code 0.
  /// Default: 1.
  TORCH_ARG(int64_t, codebooks) = 1;
  /// See ops/scalar_quantize.h. Default: "tanh".
  TORCH_ARG(std::string, bound) = "tanh";
  /// (D, D): levels are those of the rotated features. Default: none.
  TORCH_ARG(std::optional<at::Tensor>, rotation);
  /// (C * D,) or (D,): tokens are divided by it and codes multiplied, for levels of a stack.
  /// Default: none.
  TORCH_ARG(std::optional<at::Tensor>, scale);
  /// (2,), int64: seed and step of the noise. Default: none, no noise.
  TORCH_ARG(std::optional<at::Tensor>, rng);
  /// Fraction of the elements that get noise, see ops/scalar_noise.h. Default: 0.
  TORCH_ARG(double, noise) = 0.0;
  /// Noise above 0 is up to 1/2 on half of the elements, as in vector-quantize-pytorch. Default:
  /// false.
  TORCH_ARG(bool, vqp_noise) = false;
  /// Separates the noise of levels of a stack. Default: 0.
  TORCH_ARG(int64_t, stream) = 0;
  /// (B, N), bool: tokens that are quantized; the others have codes 0 and indices -1. Default: all.
  TORCH_ARG(std::optional<at::Tensor>, mask);
};

/// Result of quantize_scalars().
struct QuantizeScalarsOutput {
  at::Tensor codes;    ///< (B, N, C * D), float32 (float64 for float64 tokens)
  at::Tensor indices;  ///< (B, N, C), int64, of the codes without noise
};

/// Rounds the features of tokens to levels.
///
/// @param tokens  (B, N, C * D), floating point.
/// @param levels  D numbers, see ops/scalar_quantize.h.
///
/// Gradient     of codes to tokens: as without rounding; none from masked tokens.
/// Non-finite   a token with NaN or infinity has codes NaN and index 0.
/// Throws       c10::ValueError for bad shapes and options, c10::TypeError for bad dtypes.
TORCHVQ_API QuantizeScalarsOutput quantize_scalars(const at::Tensor& tokens, at::IntArrayRef levels,
                                                   const QuantizeScalarsOptions& options = {});

/// A forward of FSQ between its projections: quantize_scalars() of an input in its layout.
///
/// @param x               (B, *, C * D), with `channel_first` (B, C * D, *); floating point.
/// @param keep_codebooks  indices have the axis of codebooks, which a single one can do without.
/// @return                codes in layout and dtype of x; indices (B, *) or (B, *, C).
TORCHVQ_API QuantizeScalarsOutput finite_scalar_quantize(const at::Tensor& x,
                                                         at::IntArrayRef levels,
                                                         const QuantizeScalarsOptions& options,
                                                         bool channel_first, bool keep_codebooks);

/// limit * tanh(x / limit): x where it is small, and within the limits everywhere. NaN for
/// infinity.
///
/// @param x      (*, D), floating point.
/// @param limit  (D,) or (), floating point, above 0.
TORCHVQ_API at::Tensor soft_clamp(const at::Tensor& x, const at::Tensor& limit);

/// The codes of indices, with the bits that quantize_scalars() returned (without rotation; a matrix
/// product may round differently for another number of tokens).
///
/// @param indices   (*, C), int64; -1 gives zeros.
/// @param rotation  (D, D), as for quantize_scalars().
/// @param scale     as for quantize_scalars().
/// @param dtype     of the codes, float32 or float64.
/// @return          (*, C * D).
TORCHVQ_API at::Tensor decode_scalars(const at::Tensor& indices, at::IntArrayRef levels,
                                      bool symmetric = false,
                                      const std::optional<at::Tensor>& rotation = std::nullopt,
                                      const std::optional<at::Tensor>& scale = std::nullopt,
                                      at::ScalarType dtype = at::kFloat);

}  // namespace torchvq::functional
