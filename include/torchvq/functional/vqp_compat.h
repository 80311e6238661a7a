// The behaviour that `vqp_compat` restores: numbers of vector-quantize-pytorch that this library
// changes on purpose (docs/migrating.md). Only for comparison with old curves; slow, and wrong
// where that page says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// The rotation trick without bounds: near zero vectors the value is not the code and the gradient
/// gain reaches 1e6.
///
/// @param x, codes  (H, T, D).
TORCHVQ_API at::Tensor vqp_rotation_trick(const at::Tensor& x, const at::Tensor& codes);

/// The diversity loss averaged over batch and heads but not over positions, so that the assignment
/// of a single item is pushed towards uniformity.
///
/// @param inputs    (H, T, D) of split_heads().
/// @param codebook  (H, K, D), or codes of each token (H, T, K, D).
/// @param batch, tokens, heads, separate  as of merge_heads().
TORCHVQ_API at::Tensor vqp_diversity_loss(const at::Tensor& inputs, const at::Tensor& codebook,
                                          c10::SymInt batch, c10::SymInt tokens, int64_t heads,
                                          bool separate, double temperature,
                                          const std::string& metric);

/// The masked commitment loss in the space of the raw input instead of that of the codes.
///
/// @param tokens, codes  (B, N, D).    @param mask  (B, N), bool.
TORCHVQ_API at::Tensor vqp_masked_commitment(const at::Tensor& tokens, const at::Tensor& codes,
                                             const at::Tensor& mask);

/// The entropies of lookup-free quantization over all codes, in memory for tokens times codes, with
/// logarithms clamped at 1e-5.
///
/// @param latents    (C, T, D).
/// @param sharpness  log-odds of a bit are this times the latent, as for ops::sign_entropy().
/// @param mask       (C, T), bool: tokens that count. Default: all.
/// @param masked     whether the caller gave a mask: the reference then takes no average, so that
///                   the second entropy equals the first.
/// @return           that of the tokens and that of their average, scalars; 0 without tokens.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> vqp_sign_entropy(
    const at::Tensor& latents, double sharpness, const std::optional<at::Tensor>& mask,
    bool masked);

/// The loss of latent quantization between input and output, including projections; the commitment
/// loss pulls the output, the quantization loss the input.
///
/// @param z, quantized  (B, N, dim).    @param mask  (B, N), bool, true for real tokens.
TORCHVQ_API at::Tensor vqp_latent_loss(const at::Tensor& z, const at::Tensor& quantized,
                                       double commitment, double quantization,
                                       const std::optional<at::Tensor>& mask);

/// k-means from tokens drawn at random, in which clusters that lose their tokens end without any.
///
/// @param x     (H, T, D).    @param mask  (H, T), bool, true for real tokens.
/// @param rng   (2,), int64: seed and step.
/// @return      centres (H, K, D), and the tokens (H, K), int64, of the last assignment.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> vqp_kmeans(const at::Tensor& x, int64_t codes,
                                                         const at::Tensor& rng,
                                                         const std::optional<at::Tensor>& mask,
                                                         int64_t iterations,
                                                         const std::string& metric);

/// Indices as int32 if the codebook size allows it, otherwise unchanged.
TORCHVQ_API at::Tensor vqp_indices(const at::Tensor& indices, int64_t codebook_size);

/// Levels of features, int64, as int32 if the dtype of the indices that they come from fits into it; else as they are.
TORCHVQ_API at::Tensor vqp_levels(const at::Tensor& levels, const at::Tensor& indices);

}  // namespace torchvq::functional
