// What the operators of a step refuse, checked before the first of them writes: a step that fails
// changes nothing.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/functional/quantizer_losses.h>

#include "detail/codebook_state.h"
#include "detail/random_tensor.h"
#include "detail/readable.h"
#include "detail/token_checks.h"
#include "ops/ema_update_.h"
#include "ops/orthogonal_loss.h"
#include "ops/replace_dead_codes_.h"

namespace torchvq::functional {

/// Averages (H, K, D) and sizes (H, K) of codes (H, K, D), which may be parameters in half precision;
/// averages have the precision of the arithmetic.
inline void check_averages(const char* op, const at::Tensor& cluster_size,
                           const at::Tensor& embed_avg, const at::Tensor& embed) {
  detail::check_codebook_state(op, cluster_size, embed_avg, embed_avg);
  TORCH_CHECK_VALUE(embed.sym_sizes() == embed_avg.sym_sizes(), op,
                    ": expected embed_avg to have the shape of embed, ", embed.sym_sizes(),
                    ", but got ", embed_avg.sym_sizes());
}

inline void check_replaced(const char* op, const at::Tensor& replaced, const at::Tensor& embed) {
  detail::check_dtype(op, "replaced", replaced, at::kLong);
  detail::check_rank(op, "replaced", replaced, 1, "(H,)");
  detail::check_size(op, "replaced", replaced, 0, embed.sym_size(0), "heads of embed");
  detail::check_no_overlap(op, "replaced", replaced);
  detail::check_same_device(op, "embed", embed, "replaced", replaced);
}

/// The weight of a step, in the dtype that ema_update_ gets. Only where its values can be read
/// without waiting are they checked.
inline void check_step_weight(const char* op, const at::Tensor& weight,
                              const at::Tensor& cluster_size) {
  const auto own = weight.to(cluster_size.options());
  detail::check_weight(op, own, cluster_size);
  if (detail::is_readable(own)) detail::check_finite_weight(op, own);
}

inline void check_learning(const std::vector<CodebookState>& states,
                           const LearnCodebooksOptions& options,
                           const std::optional<at::Tensor>& weight = std::nullopt) {
  constexpr auto op = "learn_codebooks_";
  detail::check_decay(op, options.decay());
  detail::check_non_negative(op, "eps", options.eps());
  for (const auto& state : states) {
    check_averages(op, state.cluster_size, state.embed_avg, state.embed);
    detail::check_rng(op, state.rng);
    if (weight) check_step_weight(op, *weight, state.cluster_size);
    if (options.replaces()) check_replaced(op, state.replaced, state.embed);
  }
  if (!options.replaces()) return;
  detail::check_dead_code_rules(op, {.threshold = options.threshold(),
                                     .threshold_fraction = options.threshold_fraction(),
                                     .reset_cluster_size = options.reset_cluster_size(),
                                     .replace_used = options.vqp_compat()});
}

/// For lists of `name`, one for each state, or fewer.
inline void check_tokens(const char* op, const char* name, size_t count,
                         const std::vector<CodebookState>& states) {
  TORCH_CHECK_VALUE(count >= 1 && count <= states.size(), op, ": expected ", name, " of 1 to ",
                    states.size(), " codebooks (as many as states), but got ", count);
}

inline void check_orthogonal(const QuantizerLossOptions& losses) {
  if (!losses.training() || losses.orthogonal_weight() == 0) return;
  detail::check_orthogonal_max_codes(losses.orthogonal_max_codes());
}

/// `counts` counts the tokens of each code of `codebook` in a step.
inline void check_step_counts(const char* op, const at::Tensor& counts,
                              const at::Tensor& codebook) {
  detail::check_dtype(op, "step_counts", counts, at::kLong);
  detail::check_rank(op, "step_counts", counts, 2, "(H, K)");
  detail::check_size(op, "step_counts", counts, 0, codebook.sym_size(0), "heads of the codebook");
  TORCH_CHECK_VALUE(counts.sym_size(1) >= codebook.sym_size(-2), op,
                    ": expected step_counts to count ", codebook.sym_size(-2),
                    " codes, but got shape ", counts.sym_sizes());
  TORCH_CHECK_VALUE(counts.is_contiguous(), op,
                    ": expected step_counts to be contiguous, but got strides ",
                    counts.sym_strides());
  detail::check_same_device(op, "embed", codebook, "step_counts", counts);
}

}  // namespace torchvq::functional
