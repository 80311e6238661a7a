#include "modules/losses.h"

#include <torchvq/functional/losses.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/codebook_diversity_loss.h>
#include <torchvq/ops/commitment_cross_entropy.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/orthogonal_loss.h>

#include "modules/layout.h"

namespace torchvq::detail {

namespace F = functional;

at::Tensor commitment(const VectorQuantizeImpl& vq, const Chosen& chosen, const Call& call) {
  const auto& options = vq.options;
  const auto metric = vq.codebook_state->metric();
  if (call.targets) {
    const auto targets = layout_of(options, "VectorQuantize").split_indices(*call.targets);
    return ops::commitment_cross_entropy(chosen.inputs, chosen.codebook, targets, metric,
                                         chosen.mask);
  }
  if (!vq.has_commitment_loss()) {
    return {};
  }
  auto codes = chosen.codes;
  if (!vq.resolved().learnable_codebook || call.frozen) {
    codes = codes.detach();
  }
  if (call.topk) {
    return F::candidate_commitment_loss(chosen.inputs, codes, chosen.mask);
  }
  if (!vq.is_training()) {
    return {};
  }
  if (options.commitment_use_cross_entropy_loss()) {
    return ops::commitment_cross_entropy(chosen.inputs, chosen.codebook, chosen.indices, metric,
                                         chosen.mask);
  }
  if (options.vqp_compat() && call.mask && options.heads() == 1 && !vq.project_in) {
    return F::vqp_masked_commitment(chosen.tokens, codes.view_symint(chosen.tokens.sym_sizes()),
                                    *call.mask);
  }
  return ops::commitment_loss(chosen.inputs, codes, chosen.mask);
}

at::Tensor diversity(const VectorQuantizeImpl& vq, const Chosen& chosen,
                     const std::optional<at::Tensor>& totals) {
  const auto& options = vq.options;
  if (!vq.is_training() || options.codebook_diversity_loss_weight() == 0) {
    return {};
  }
  const auto temperature = options.codebook_diversity_temperature();
  const auto metric = vq.codebook_state->metric();
  if (options.vqp_compat()) {
    return F::vqp_diversity_loss(chosen.inputs, chosen.codebook, chosen.tokens.sym_size(0),
                                 chosen.tokens.sym_size(1), options.heads(),
                                 options.separate_codebook_per_head(), temperature, metric);
  }
  return ops::codebook_diversity_loss(chosen.inputs, chosen.codebook, temperature, metric,
                                      chosen.mask, totals);
}

at::Tensor orthogonal(const VectorQuantizeImpl& vq, const at::Tensor& indices) {
  const auto& options = vq.options;
  if (!vq.is_training() || options.orthogonal_reg_weight() == 0) {
    return {};
  }
  const auto active =
      options.orthogonal_reg_active_codes_only() ? std::optional(indices) : std::nullopt;
  return ops::orthogonal_loss(vq.codebook_state->embed, active, options.orthogonal_reg_max_codes(),
                              vq.codebook_state->rng);
}

LossBreakdown breakdown(const at::Tensor& inputs, LossBreakdown terms) {
  const auto zero = inputs.new_zeros({});
  for (auto* term : {&terms.commitment, &terms.codebook_diversity, &terms.orthogonal_reg,
                     &terms.inplace_optimize}) {
    if (!term->defined()) {
      *term = zero;
    }
  }
  return terms;
}

at::Tensor total(const VectorQuantizeImpl& vq, const LossBreakdown& terms, const Call& call) {
  const auto& options = vq.options;
  if (call.targets) {
    return F::weighted_loss({terms.commitment}, {1.0}, vq.is_training());
  }
  return F::weighted_loss({terms.commitment, terms.codebook_diversity, terms.orthogonal_reg},
                          {options.commitment_weight(), options.codebook_diversity_loss_weight(),
                           options.orthogonal_reg_weight()},
                          vq.is_training());
}

}  // namespace torchvq::detail
