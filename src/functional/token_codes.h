// Search among codes that differ for each token (implicit codebooks, codebook_transform_fn), and
// their losses.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::functional {

/// Finds the nearest of each token's own codes.
///
/// @param x         (H, T, D), float32 or float64.
/// @param codebook  (H, T, K, D), floating point. For cosine, the codes are normalized.
/// @param topk      returns the k best on a trailing axis: indices (H, T, k), codes (H, T, k, D).
///                  Default: one, without that axis.
/// @return          indices (H, T), int64, lowest index on ties; codes (H, T, D), with gradient to
///                  codebook.
std::tuple<at::Tensor, at::Tensor> nearest_token_code(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      const std::string& metric,
                                                      std::optional<int64_t> topk = std::nullopt);

/// Draws one of each token's own codes, or `topk` different ones; arguments and results as above,
/// rng and temperature those of ops::sample_codes().
std::tuple<at::Tensor, at::Tensor> sampled_token_code(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      const at::Tensor& rng, double temperature,
                                                      const std::string& metric,
                                                      std::optional<int64_t> topk = std::nullopt);

/// Token tensors (H, T, ...) as H * T heads of one token each, for operators that take one codebook
/// per head: (H * T, 1, ...), and codes of each token (H * T, K, D).
inline at::Tensor one_token_heads(const at::Tensor& tokens) {
  return tokens.flatten(0, 1).unsqueeze(1);
}
inline at::Tensor one_token_codebooks(const at::Tensor& codebook) { return codebook.flatten(0, 1); }

/// ops::commitment_cross_entropy() for codes of each token, (H, T, K, D), and targets (H, T).
/// Gradient by ordinary autograd; memory as much as the codes take.
at::Tensor token_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                               const at::Tensor& targets, const std::string& metric,
                               const std::optional<at::Tensor>& mask);

/// ops::codebook_diversity_loss() and ops::codebook_diversity_totals() for codes of each token,
/// (H, T, K, D): codes of the same index count as the same. Tokens that are not finite take no
/// part. Gradient by ordinary autograd; memory as much as the codes take.
at::Tensor token_diversity_loss(const at::Tensor& x, const at::Tensor& codebook, double temperature,
                                const std::string& metric, const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& totals);
at::Tensor token_diversity_totals(const at::Tensor& x, const at::Tensor& codebook,
                                  double temperature, const std::string& metric,
                                  const std::optional<at::Tensor>& mask);

/// The scores (H, T, K) of each token's own codes: minus the distance, or for cosine the product of
/// unit vectors.
at::Tensor token_scores(const at::Tensor& x, const at::Tensor& codebook, const std::string& metric);

}  // namespace torchvq::functional
