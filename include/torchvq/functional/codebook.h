// Composites on the state of a codebook: initialisation, the affine map, accumulation.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::functional {

/// Options of initialise_codebook_().
struct InitialiseCodebookOptions {
  /// Lloyd iterations, 0 or more (0 returns the seeds). Default: 10.
  TORCH_ARG(int64_t, iterations) = 10;
  /// Distance: "euclidean" or "cosine". Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// Process group whose ranks share the tokens, see distributed::SyncOptions. Default: "", none.
  TORCH_ARG(std::string, group_name) = "";
  /// The quantizer's name in errors. Default: "quantizer".
  TORCH_ARG(std::string, label) = "quantizer";
  /// Clusters may end without tokens, at the origin, as in vector-quantize-pytorch; without a group
  /// only. Default: false.
  TORCH_ARG(bool, vqp_compat) = false;
};

/// Sets a codebook to the k-means centres of the first training tokens.
///
/// embed = centres, cluster_size = their tokens, embed_avg = centres * tokens, initted = true.
/// With no unmasked token on any rank nothing changes, and `initted` stays false. Ranks of a group
/// get the codebook of one process with the concatenated batch (distributed/synced_kmeans.h, which
/// also describes large batches).
///
/// @param initted       (), bool.
/// @param cluster_size  (H, K).    @param embed_avg  (H, K, D).    @param embed  (H, K, D).
/// @param x             (H, T, D) tokens.
/// @param rng           (2,), int64: seed and step.
/// @param mask          (H, T), bool.
TORCHVQ_API void initialise_codebook_(at::Tensor initted, at::Tensor cluster_size,
                                      at::Tensor embed_avg, at::Tensor embed, const at::Tensor& x,
                                      const at::Tensor& rng,
                                      const std::optional<at::Tensor>& mask = std::nullopt,
                                      const InitialiseCodebookOptions& options = {});

/// Codes mapped to the distribution of the data (affine reparametrisation, Huh et al. 2023,
/// arXiv:2305.08842).
///
/// Formula   (embed - codebook_mean) * batch_std / codebook_std + batch_mean,
///           std = sqrt(max(variance, 1e-5))
/// Gradient  to embed, by the scale; statistics are (H, 1, D) and constants for autograd.
TORCHVQ_API at::Tensor affine_codes(const at::Tensor& embed, const at::Tensor& batch_mean,
                                    const at::Tensor& batch_variance,
                                    const at::Tensor& codebook_mean,
                                    const at::Tensor& codebook_variance);

/// The inverse map: tokens (H, T, D) in the space of the raw codes, in which averages are computed.
TORCHVQ_API at::Tensor affine_inputs(const at::Tensor& x, const at::Tensor& batch_mean,
                                     const at::Tensor& batch_variance,
                                     const at::Tensor& codebook_mean,
                                     const at::Tensor& codebook_variance);

/// Moves running mean and variance (H, 1, D) towards those of finite, unmasked rows of x (H, T, D);
/// the first update, while `needs_init` () is true, sets them. Without rows nothing changes. Sums
/// are exact (ops/code_statistics.h), so neither order nor split of the rows matters: ranks of a
/// group get the bits of one process with the concatenated batch, with one all-reduce.
/// @return  rows counted, on all ranks, (H, 1), int64.
TORCHVQ_API at::Tensor update_affine_(at::Tensor mean, at::Tensor variance,
                                      at::Tensor mean_needs_init, at::Tensor variance_needs_init,
                                      const at::Tensor& x, const std::optional<at::Tensor>& mask,
                                      double decay, const distributed::SyncOptions& sync = {});

/// The averages from which ema_finish_() computes these codes, up to rounding, for codes that did
/// not come from averages.
///
/// Formula   embed * smoothed sizes, see ops/ema_finish_.h
///
/// @param embed         (H, K, D), floating point.
/// @param cluster_size  (H, K), float32 or float64.
/// @param eps           as for ema_finish_().
/// @return              (H, K, D), dtype of cluster_size. No gradient.
TORCHVQ_API at::Tensor averages_of_codes(const at::Tensor& embed, const at::Tensor& cluster_size,
                                         double eps);

/// Adds the statistics (counts, sums, exponents) of two micro-batches, see ops/code_statistics.h:
/// the bits of one batch, unless data outgrew an exponent in only one of them; then up to the
/// rounding of the larger exponent.
TORCHVQ_API std::tuple<at::Tensor, at::Tensor, at::Tensor> merge_statistics(
    const at::Tensor& counts_a, const at::Tensor& sums_a, const at::Tensor& exponents_a,
    const at::Tensor& counts_b, const at::Tensor& sums_b, const at::Tensor& exponents_b);

}  // namespace torchvq::functional
