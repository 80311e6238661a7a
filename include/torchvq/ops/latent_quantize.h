// Latent quantization: replaces every feature by the nearest of a few values of that feature.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// The result of latent_quantize().
struct LatentQuantizeResult {
  at::Tensor codes;    ///< (*, D), float64 for float64 x, otherwise float32; zeros where masked
  at::Tensor indices;  ///< (*), int64; -1 where masked
  at::Tensor loss;     ///< scalar of the dtype of codes
};

/// Replaces each feature by the nearest of its values.
///
/// Formula      level i_j = argmin_i |x_j - values_j[i]|, codes_j = values_j[i_j];
///              index = sum over j of i_j * product of levels before j;
///              loss = commitment * mean (x - sg(codes))^2 + quantization * mean (sg(x) - codes)^2
/// Paper        Hsu et al. 2023, Disentanglement via Latent Quantization, arXiv:2305.18378,
///              equations 2 to 4
///
/// @param x       (*, D), floating point, any strides, D the number of levels.
/// @param values  (sum of levels), floating point: the values of feature 0, then of feature 1, ....
/// @param levels  number of values of each feature, each in [2, 65536]; product at most 2^62.
/// @param commitment, quantization  weights of the loss, finite and 0 or more.
/// @param mask    (*), bool, true for real tokens.
///
/// Gradient     codes to x: the identity (straight-through); loss to x and to values by the
///              formula, where sg stops the gradient. Not differentiable again.
/// Ties         distances are float64; the lowest level wins.
/// Non-finite   a token with NaN or infinity gives codes NaN and index 0, and does not reach the
///              gradient of values; loss NaN.
/// Empty        no real tokens: loss 0.
/// Determinism  the same bits for any number of threads.
/// Throws       c10::ValueError, c10::TypeError for bad arguments.
TORCHVQ_API LatentQuantizeResult latent_quantize(
    const at::Tensor& x, const at::Tensor& values, at::IntArrayRef levels, double commitment = 0.0,
    double quantization = 0.0, const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
