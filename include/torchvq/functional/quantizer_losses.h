// The terms of the loss of VectorQuantize, and of each level of a stack of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::functional {

/// The inputs and results of a search; see quantize.h.
struct SearchedTokens {
  at::Tensor inputs;               ///< (H, T, D)
  at::Tensor codebook;             ///< (H, K, D), or codes of each token (H, T, K, D)
  std::optional<at::Tensor> mask;  ///< (H, T), bool
  at::Tensor codes;                ///< (H, T, D), or of candidates (H, T, k, D)
  at::Tensor indices;              ///< (H, T), or (H, T, k)
};

/// The tokens before the projection, which the rules of the reference need.
struct TokensBefore {
  at::Tensor tokens;               ///< (B, N, dim), before the projection
  std::optional<at::Tensor> mask;  ///< (B, N), bool
  int64_t heads = 1;
  bool separate = false;
  bool projected = false;  ///< whether a projection stands between these and the search
};

/// Options of the terms.
struct QuantizerLossOptions {
  /// Whether ranks add up the diversity loss.
  [[nodiscard]] bool shares_diversity() const {
    return training() && diversity_weight() > 0 && !vqp_compat();
  }
  /// Whether the diversity loss ignores masks, as in the reference.
  [[nodiscard]] bool diversity_of_padding() const {
    return training() && diversity_weight() > 0 && vqp_compat();
  }

  /// Whether the module is in training: in evaluation only requested terms are computed.
  TORCH_ARG(bool, training) = false;
  /// "euclidean" or "cosine". Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// Weight of the commitment loss; at 0 there is none. Default: 1.
  TORCH_ARG(double, commitment_weight) = 1;
  /// As cross-entropy instead of the mean squared error. Default: false.
  TORCH_ARG(bool, commitment_use_cross_entropy_loss) = false;
  /// Whether the commitment loss pulls the codes as well. Default: false.
  TORCH_ARG(bool, pulls_codes) = false;
  /// Weight of the diversity loss; at 0 there is none. Default: 0.
  TORCH_ARG(double, diversity_weight) = 0;
  TORCH_ARG(double, diversity_temperature) = 100;
  /// Weight of the orthogonal regularisation; at 0 there is none. Default: 0.
  TORCH_ARG(double, orthogonal_weight) = 0;
  TORCH_ARG(bool, orthogonal_active_codes_only) = false;
  TORCH_ARG(std::optional<int64_t>, orthogonal_max_codes);
  /// The numbers of the reference (vqp_compat.h), from the tokens before the projection. Default:
  /// none.
  TORCH_ARG(std::optional<TokensBefore>, vqp_compat);
};

/// The terms; absent terms are 0.
struct QuantizerLosses {
  at::Tensor commitment;
  at::Tensor diversity;
  at::Tensor orthogonal;
};

/// The terms for the codes that were searched; the orthogonal term follows after the codes have
/// learnt, and is 0 here.
///
/// Commitment is the distance of tokens and codes, a scalar; of candidates one for each, (H, T, k);
/// with targets (H, T) the cross-entropy of the distances with them. Diversity is minus the
/// entropy of the mean code distribution, over the ranks whose totals are given.
TORCHVQ_API QuantizerLosses search_losses(const SearchedTokens& searched,
                                          const std::optional<at::Tensor>& targets,
                                          const std::optional<at::Tensor>& totals,
                                          const QuantizerLossOptions& options);

/// The sums over ranks for the diversity loss: one all-reduce for all codebooks. None for each
/// codebook if ranks share nothing.
///
/// @param codebooks  of all levels, (H, K, D); those beyond `searched` are dropped and take part
///                   with zeros, so that the message does not depend on the depth.
/// @param options    of each level in `searched`.
TORCHVQ_API std::vector<std::optional<at::Tensor>> shared_totals(
    at::TensorList codebooks, const std::vector<SearchedTokens>& searched,
    const std::vector<QuantizerLossOptions>& options, const distributed::SyncOptions& sync);

/// The orthogonal loss of the codes (H, K, D) after a step. Undefined if there is no such term.
///
/// @param indices  (H, T), or of candidates (H, T, k): the active codes.
TORCHVQ_API at::Tensor orthogonal_term(const at::Tensor& embed, const at::Tensor& indices,
                                       const at::Tensor& rng, const QuantizerLossOptions& options);

/// The weighted sum; with targets only the cross-entropy.
TORCHVQ_API at::Tensor total_loss(const QuantizerLosses& losses, bool targets,
                                  const QuantizerLossOptions& options);

}  // namespace torchvq::functional
