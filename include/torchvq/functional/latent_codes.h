// Latent quantization with a separate tensor of values for each feature.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/ops/latent_quantize.h>

namespace torchvq::functional {

/// ops::latent_quantize() with one tensor of values per feature, whose sizes are the levels.
TORCHVQ_API ops::LatentQuantizeResult latent_quantize(
    const at::Tensor& x, at::TensorList values, double commitment = 0.0, double quantization = 0.0,
    const std::optional<at::Tensor>& mask = std::nullopt);

/// The values that features with these levels begin with: evenly spaced, float32, from -1/2 to 1/2
/// for an odd number L, from -1/2 to 1/2 - 1/L for an even one.
///
/// Throws  c10::ValueError for levels that are not in [2, 65536] or whose product exceeds 2^62.
TORCHVQ_API std::vector<at::Tensor> latent_values(at::IntArrayRef levels);

/// The codes of indices, with the bits that latent_quantize() returned.
///
/// @param indices  (*), int64, in [0, product of levels), or -1, which gives zeros.
/// @return         (*, D), float64 for float64 values, otherwise float32; with gradient to values.
///
/// Throws  c10::IndexError for an index outside (on CPU).
TORCHVQ_API at::Tensor latent_decode(const at::Tensor& indices, at::TensorList values);

/// The two terms of the loss, as means over real tokens, or element by element.
///
/// Gradient  of the first to z, of the second to zhat; the other side is a constant.
/// @param reduce  "mean", "sum" or "none".
TORCHVQ_API at::Tensor latent_commitment_loss(const at::Tensor& z, const at::Tensor& zhat,
                                              std::string_view reduce = "mean");
TORCHVQ_API at::Tensor latent_quantization_loss(const at::Tensor& z, const at::Tensor& zhat,
                                                std::string_view reduce = "mean");

}  // namespace torchvq::functional
