// Learning in a training step: statistics of its tokens, moving averages, codes, dead codes. One
// call serves a codebook or all levels of a stack.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/export.h>

namespace torchvq::functional {

/// The state of a codebook that training changes.
struct CodebookState {
  at::Tensor embed;         ///< (H, K, D), floating point: the codes
  at::Tensor cluster_size;  ///< (H, K), float32 or float64
  at::Tensor embed_avg;     ///< (H, K, D), dtype of cluster_size
  at::Tensor replaced;      ///< (H,), int64: codes replaced since it was set to zero
  at::Tensor rng;           ///< (2,), int64: seed and step; read, not changed
  /// With sync_every above 1, the accumulated statistics: steps (4,), counts (H, K), sums (2, H,
  /// K, D), all int64, exponents (2, H, K), int32, and candidates for dead codes (H, K, 1 + D), or
  /// (H, 0, 1 + D) without replacement, in the dtype of cluster_size
  /// (distributed/kept_statistics.h). All begin as zeros.
  std::vector<at::Tensor> kept = {};
};

/// The tokens that one codebook learns from in a step, in the space of its averages.
struct StepTokens {
  at::Tensor x;                    ///< (H, T, D), floating point, without gradient
  at::Tensor indices;              ///< (H, T), int64: the code of each; -1 is left out
  std::optional<at::Tensor> mask;  ///< (H, T), bool
};

/// Tokens of each code, of all ranks; see ops/code_statistics.h.
struct CodeStatistics {
  at::Tensor counts;     ///< (H, K), int64
  at::Tensor sums;       ///< (W, H, K, D), int64
  at::Tensor exponents;  ///< (H, K), int32
};

/// Options of the functions below, the same for all codebooks of a call.
struct LearnCodebooksOptions {
  /// Whether dead codes are replaced.
  [[nodiscard]] bool replaces() const { return threshold() > 0 || threshold_fraction() > 0; }
  /// Whether a step needs statistics at all.
  [[nodiscard]] bool learns() const { return ema_update() || replaces(); }

  /// Decay of the moving averages, in [0, 1]. Default: 0.8.
  TORCH_ARG(double, decay) = 0.8;
  /// Laplace smoothing of the cluster sizes. Default: 1e-5.
  TORCH_ARG(double, eps) = 1e-5;
  /// "euclidean" or "cosine". Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// Whether the codes follow the averages. Without this and without dead-code replacement the step
  /// does not learn. Default: true.
  TORCH_ARG(bool, ema_update) = true;
  /// Update the averages now, and the codes when the caller requests it. Default: false.
  TORCH_ARG(bool, manual_ema_update) = false;
  /// The codes are parameters that an optimizer moves between steps. Default: false.
  TORCH_ARG(bool, by_gradient) = false;
  /// See ops/replace_dead_codes_.h. Default: 0, never.
  TORCH_ARG(double, threshold) = 0;
  TORCH_ARG(double, threshold_fraction) = 0;
  TORCH_ARG(double, reset_cluster_size) = 0;
  /// The reference's rules for dead and unused codes. Default: false.
  TORCH_ARG(bool, vqp_compat) = false;
  /// The ranks that learn together. Default: none but this process.
  TORCH_ARG(distributed::Ranks, ranks);
  /// Number of steps whose statistics are accumulated and then used as one batch; above 1 states
  /// have `kept`. 0: this call joins the accumulated steps without counting as a step. Default: 1.
  TORCH_ARG(int64_t, sync_every) = 1;
  /// Further text that must be the same on all ranks, quoted in errors. Default: "".
  TORCH_ARG(std::string, signature);
};

/// Statistics of the tokens of all ranks: one all-reduce for all codebooks.
///
/// @param tokens  one for each state, or fewer: the codebooks of dropped levels take part without
///                tokens, because the message must not depend on the depth.
/// @return        one for each of `tokens`.
TORCHVQ_API std::vector<CodeStatistics> collect_statistics(const std::vector<CodebookState>& states,
                                                           const std::vector<StepTokens>& tokens,
                                                           const LearnCodebooksOptions& options);

/// Updates averages and codes from statistics, then replaces dead codes by tokens of this step, of
/// all ranks: at most one code for every four tokens, unless `vqp_compat`.
///
/// @param weight  (K,), (H, K) or scalar: multiplies 1 - decay. Default: 1.
TORCHVQ_API void learn_from_statistics_(const std::vector<CodebookState>& states,
                                        const std::vector<StepTokens>& tokens,
                                        const std::vector<CodeStatistics>& statistics,
                                        const LearnCodebooksOptions& options,
                                        const std::optional<at::Tensor>& weight = std::nullopt);

/// collect_statistics(), then learn_from_statistics_(): the whole training step of the codebooks.
///
/// @return  tokens of this step per code (H, K), of all ranks, for each of `tokens`; none if the
///          step does not learn. With sync_every above 1 these are ones, because the counts are
///          unknown and every step counts.
///
/// Gradient     none.
/// Determinism  that of its parts: the same bits for any number of ranks and threads.
/// Throws       as ops/code_statistics.h, ema_update_.h and replace_dead_codes_.h, and on all ranks
///              if they disagree.
TORCHVQ_API std::vector<at::Tensor> learn_codebooks_(
    const std::vector<CodebookState>& states, const std::vector<StepTokens>& tokens,
    const LearnCodebooksOptions& options, const std::optional<at::Tensor>& weight = std::nullopt);

/// Replaces dead codes by tokens (H, T, D) of all ranks, without learning from these tokens; each
/// token may replace one.
TORCHVQ_API void expire_codes_(const std::vector<CodebookState>& states, at::TensorList x,
                               const LearnCodebooksOptions& options);

/// The codes in the dtype of the averages, for writing.
TORCHVQ_API at::Tensor wide_embed(const CodebookState& state, double eps,
                                  const std::string& metric);

}  // namespace torchvq::functional
