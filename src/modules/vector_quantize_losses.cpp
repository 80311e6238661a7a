// The terms of the loss of VectorQuantize, each undefined where the module or the call does
// without.
#include <torchvq/functional/layout.h>
#include <torchvq/functional/losses.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/codebook_diversity_loss.h>
#include <torchvq/ops/commitment_cross_entropy.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/orthogonal_loss.h>

#include "modules/vector_quantize_call.h"

namespace torchvq {

namespace F = functional;

torch::Tensor VectorQuantizeImpl::commitment(const Chosen& chosen, const Call& call) const {
  const auto metric = codebook_state->metric();
  if (call.options.indices()) {
    const auto targets = F::split_indices(*call.options.indices(), options.heads(),
                                          options.separate_codebook_per_head());
    return ops::commitment_cross_entropy(chosen.inputs, chosen.table, targets, metric, chosen.mask);
  }
  if (options.commitment_weight() == 0 || options.directional_reparam()) {
    return {};
  }
  auto codes = chosen.codes;
  if (!resolved_.learnable_codebook || call.frozen) {
    codes = codes.detach();
  }
  if (call.topk) {
    return F::candidate_commitment_loss(chosen.inputs, codes, chosen.mask);
  }
  if (!is_training()) {
    return {};
  }
  if (options.commitment_use_cross_entropy_loss()) {
    return ops::commitment_cross_entropy(chosen.inputs, chosen.table, chosen.indices, metric,
                                         chosen.mask);
  }
  if (options.vqp_compat() && call.mask && options.heads() == 1 && !project_in) {
    return F::vqp_masked_commitment(chosen.tokens, codes.view_symint(chosen.tokens.sym_sizes()),
                                    *call.mask);
  }
  return ops::commitment_loss(chosen.inputs, codes, chosen.mask);
}

torch::Tensor VectorQuantizeImpl::diversity(const Chosen& chosen) const {
  if (!is_training() || options.codebook_diversity_loss_weight() == 0) {
    return {};
  }
  const auto temperature = options.codebook_diversity_temperature();
  const auto metric = codebook_state->metric();
  if (options.vqp_compat()) {
    return F::vqp_diversity_loss(chosen.inputs, chosen.table, chosen.tokens.sym_size(0),
                                 chosen.tokens.sym_size(1), options.heads(),
                                 options.separate_codebook_per_head(), temperature, metric);
  }
  return ops::codebook_diversity_loss(chosen.inputs, chosen.table, temperature, metric,
                                      chosen.mask);
}

torch::Tensor VectorQuantizeImpl::orthogonal(const torch::Tensor& indices) const {
  if (!is_training() || options.orthogonal_reg_weight() == 0) {
    return {};
  }
  const auto active =
      options.orthogonal_reg_active_codes_only() ? std::optional(indices) : std::nullopt;
  return ops::orthogonal_loss(codebook_state->embed, active, options.orthogonal_reg_max_codes(),
                              codebook_state->rng);
}

torch::Tensor VectorQuantizeImpl::total(const LossBreakdown& terms, const Call& call) const {
  if (call.options.indices()) {
    return F::weighted_loss({terms.commitment}, {1.0}, is_training());
  }
  return F::weighted_loss({terms.commitment, terms.codebook_diversity, terms.orthogonal_reg},
                          {options.commitment_weight(), options.codebook_diversity_loss_weight(),
                           options.orthogonal_reg_weight()},
                          is_training());
}

}  // namespace torchvq
