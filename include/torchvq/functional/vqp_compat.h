// What `vqp_compat` restores: numbers of vector-quantize-pytorch that this library changes on
// purpose (docs/migrating.md). For comparing with old curves only; slow, and wrong where that page
// says so.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// The rotation trick without bounds: near zero vectors the value is not the code and the gradient
/// gain reaches 1e6.
///
/// @param x, codes  (H, T, D).
TORCHVQ_API at::Tensor vqp_rotation_trick(const at::Tensor& x, const at::Tensor& codes);

/// The diversity loss averaged over batch and heads but not over positions, so that one item of a
/// batch is pushed towards indecision.
///
/// @param inputs    (H, T, D) of split_heads().
/// @param codebook  (H, K, D).
/// @param batch, tokens, heads, separate  as of merge_heads().
TORCHVQ_API at::Tensor vqp_diversity_loss(const at::Tensor& inputs, const at::Tensor& codebook,
                                          c10::SymInt batch, c10::SymInt tokens, int64_t heads,
                                          bool separate, double temperature,
                                          const std::string& metric);

/// The masked commitment loss in the space of the raw input instead of the one in which codes are
/// compared.
///
/// @param tokens, codes  (B, N, D).    @param mask  (B, N), bool.
TORCHVQ_API at::Tensor vqp_masked_commitment(const at::Tensor& tokens, const at::Tensor& codes,
                                             const at::Tensor& mask);

}  // namespace torchvq::functional
