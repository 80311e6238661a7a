#include "modules/losses.h"

#include "modules/layout.h"

namespace torchvq::detail {

namespace F = functional;

namespace {

double commitment_weight_of(const VectorQuantizeImpl& vq, const Request& request) {
  if (vq.has_commitment_loss()) return vq.options.commitment_weight();
  // The losses of candidates rank them, so without a weight they are unweighted, not absent.
  return !vq.is_training() && request.topk && !request.targets ? 1 : 0;
}

}  // namespace

F::QuantizerLossOptions loss_options(const VectorQuantizeImpl& vq,
                                     const std::optional<at::Tensor>& tokens,
                                     const Request& request) {
  const auto& options = vq.options;
  auto losses = F::QuantizerLossOptions()
                    .training(vq.is_training())
                    .metric(vq.codebook_state->metric())
                    .commitment_weight(commitment_weight_of(vq, request))
                    .commitment_use_cross_entropy_loss(options.commitment_use_cross_entropy_loss())
                    .pulls_codes(vq.resolved().learnable_codebook && !request.frozen)
                    .diversity_weight(options.codebook_diversity_loss_weight())
                    .diversity_temperature(options.codebook_diversity_temperature())
                    .orthogonal_weight(options.orthogonal_reg_weight())
                    .orthogonal_active_codes_only(options.orthogonal_reg_active_codes_only())
                    .orthogonal_max_codes(options.orthogonal_reg_max_codes());
  if (options.vqp_compat()) {
    losses.vqp_compat(F::TokensBefore{tokens.value_or(at::Tensor()), request.mask, options.heads(),
                                      options.separate_codebook_per_head(),
                                      !vq.project_in.is_empty()});
  }
  return losses;
}

bool sees_padding(const VectorQuantizeOptions& options, bool training) {
  return training && options.vqp_compat() && options.codebook_diversity_loss_weight() > 0;
}

at::Tensor level_loss(const VectorQuantizeImpl& vq, const F::SearchedTokens& searched,
                      const Request& request, F::QuantizerLosses losses,
                      const F::QuantizerLossOptions& options) {
  const auto& codebook = *vq.codebook_state;
  const auto orthogonal =
      F::orthogonal_term(codebook.embed, searched.indices, codebook.rng, options);
  if (orthogonal.defined()) losses.orthogonal = orthogonal;
  return F::total_loss(losses, request.targets.has_value(), options);
}

std::optional<at::Tensor> targets_of(const VectorQuantizeImpl& vq, const Request& request) {
  if (!request.targets) return std::nullopt;
  return layout_of(vq.options, "VectorQuantize").split_indices(*request.targets);
}

}  // namespace torchvq::detail
