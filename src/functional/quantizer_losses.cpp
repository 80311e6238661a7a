#include <torchvq/functional/quantizer_losses.h>

#include <algorithm>

#include <ATen/ops/cat.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/functional/losses.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/codebook_diversity_loss.h>
#include <torchvq/ops/commitment_cross_entropy.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/orthogonal_loss.h>

#include "functional/token_codes.h"

namespace torchvq::functional {
namespace {

at::Tensor cross_entropy(const SearchedTokens& searched, const at::Tensor& targets,
                         const QuantizerLossOptions& options) {
  const auto& [inputs, codebook, mask, codes, indices] = searched;
  if (codebook.dim() == 3) {
    return ops::commitment_cross_entropy(inputs, codebook, targets, options.metric(), mask);
  }
  return token_cross_entropy(inputs, codebook, targets, options.metric(), mask);
}

/// Undefined if there is no such term.
at::Tensor commitment_term(const SearchedTokens& searched, const std::optional<at::Tensor>& targets,
                           const QuantizerLossOptions& options) {
  const auto& [inputs, codebook, mask, found, indices] = searched;
  if (targets) return cross_entropy(searched, *targets, options);
  if (options.commitment_weight() == 0) return {};
  if (!options.training()) {
    // Candidates are ranked by their losses; no loss in evaluation has a gradient.
    return found.dim() == 4 ? candidate_commitment_loss(inputs.detach(), found.detach(), mask)
                            : at::Tensor();
  }
  const auto codes = options.pulls_codes() ? found : found.detach();
  if (codes.dim() == 4) return candidate_commitment_loss(inputs, codes, mask);
  if (options.commitment_use_cross_entropy_loss()) {
    return cross_entropy(searched, indices, options);
  }
  if (options.vqp_compat()) {
    const auto& before = *options.vqp_compat();
    // Where there is no projection, a module that a user has put there may change the width.
    if (before.mask && before.heads == 1 && !before.projected &&
        before.tokens.sym_size(-1) == codes.sym_size(-1)) {
      return vqp_masked_commitment(before.tokens, codes.view_symint(before.tokens.sym_sizes()),
                                   *before.mask);
    }
  }
  return ops::commitment_loss(inputs, codes, mask);
}

at::Tensor plain_totals(const at::Tensor& inputs, const at::Tensor& codebook, double temperature,
                        const std::string& metric, const std::optional<at::Tensor>& mask) {
  return ops::codebook_diversity_totals(inputs, codebook, temperature, metric, mask);
}

/// Undefined if there is no such term.
at::Tensor diversity_term(const SearchedTokens& searched, const std::optional<at::Tensor>& totals,
                          const QuantizerLossOptions& options) {
  if (!options.training() || options.diversity_weight() == 0) return {};
  const auto temperature = options.diversity_temperature();
  if (const auto& before = options.vqp_compat()) {
    return vqp_diversity_loss(searched.inputs, searched.codebook, before->tokens.sym_size(0),
                              before->tokens.sym_size(1), before->heads, before->separate,
                              temperature, options.metric());
  }
  const auto own = searched.codebook.dim() == 4;
  return own ? token_diversity_loss(searched.inputs, searched.codebook, temperature,
                                    options.metric(), searched.mask, totals)
             : ops::codebook_diversity_loss(searched.inputs, searched.codebook, temperature,
                                            options.metric(), searched.mask, totals);
}

}  // namespace

QuantizerLosses search_losses(const SearchedTokens& searched,
                              const std::optional<at::Tensor>& targets,
                              const std::optional<at::Tensor>& totals,
                              const QuantizerLossOptions& options) {
  const auto zero = searched.inputs.new_zeros({});
  const auto or_zero = [&](const at::Tensor& term) { return term.defined() ? term : zero; };
  return {or_zero(commitment_term(searched, targets, options)),
          or_zero(diversity_term(searched, totals, options)), zero};
}

std::vector<std::optional<at::Tensor>> shared_totals(
    at::TensorList codebooks, const std::vector<SearchedTokens>& searched,
    const std::vector<QuantizerLossOptions>& options, const distributed::SyncOptions& sync) {
  std::vector<std::optional<at::Tensor>> totals(searched.size());
  const bool shares = std::any_of(options.begin(), options.end(),
                                  [](const auto& level) { return level.shares_diversity(); });
  if (sync.group_name.empty() || !shares) return totals;
  std::vector<at::Tensor> parts, flat;
  std::vector<int64_t> sizes;
  for (size_t level = 0; level < codebooks.size(); ++level) {
    if (level < searched.size()) {
      const auto& own = searched[level];
      const auto& how = options[level];
      const auto totals_of = own.codebook.dim() == 4 ? token_diversity_totals : plain_totals;
      parts.push_back(totals_of(own.inputs.detach(), own.codebook.detach(),
                                how.diversity_temperature(), how.metric(), own.mask));
    } else {
      const auto& codes = codebooks[level];
      parts.push_back(parts[0].new_zeros({codes.size(0), codes.size(1) + 2}));
    }
    flat.push_back(parts.back().flatten());
    sizes.push_back(parts.back().numel());
  }
  const auto summed =
      distributed::all_reduce_statistics(at::cat(flat), sync).split_with_sizes(sizes);
  for (size_t level = 0; level < searched.size(); ++level) {
    totals[level] = summed[level].view(parts[level].sizes());
  }
  return totals;
}

at::Tensor orthogonal_term(const at::Tensor& embed, const at::Tensor& indices,
                           const at::Tensor& rng, const QuantizerLossOptions& options) {
  if (!options.training() || options.orthogonal_weight() == 0) return {};
  // Every candidate of a token is active.
  const auto active =
      options.orthogonal_active_codes_only() ? std::optional(indices.flatten(1)) : std::nullopt;
  return ops::orthogonal_loss(embed, active, options.orthogonal_max_codes(), rng);
}

at::Tensor total_loss(const QuantizerLosses& losses, bool targets,
                      const QuantizerLossOptions& options) {
  if (targets) return weighted_loss({losses.commitment}, {1.0}, options.training());
  return weighted_loss(
      {losses.commitment, losses.diversity, losses.orthogonal},
      {options.commitment_weight(), options.diversity_weight(), options.orthogonal_weight()},
      options.training());
}

}  // namespace torchvq::functional
