#include <torchvq/functional/vector_quantize.h>

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <torchvq/functional/codebook.h>
#include <torchvq/functional/losses.h>
#include <torchvq/ops/count_codes_.h>

#include "distributed/group.h"

namespace torchvq::functional {
namespace {

// A prime below 2^40: seeds of levels, which are consecutive, stay apart.
constexpr int64_t kSeedsApart = 1099511627689;

at::Tensor or_zero(const at::Tensor& term, const at::Tensor& zero) {
  return term.defined() ? term : zero;
}

at::Tensor weighted_sum(const VectorQuantizeStep& step, bool targets,
                        const QuantizerLossOptions& losses) {
  if (targets) return weighted_loss({step.commitment}, {1.0}, losses.training());
  return weighted_loss(
      {step.commitment, step.diversity, step.orthogonal},
      {losses.commitment_weight(), losses.diversity_weight(), losses.orthogonal_weight()},
      losses.training());
}

std::vector<at::Tensor> learn(const SearchedTokens& searched, const CodebookState& state,
                              const VectorQuantizeArguments& arguments,
                              const VectorQuantizeStepOptions& options) {
  if (!options.learns()) return {};
  auto taught = searched.inputs.detach();
  if (const auto& affine = arguments.affine; !affine.empty()) {
    taught = affine_inputs(taught, affine[0], affine[1], affine[2], affine[3]);
  }
  return learn_codebooks_({state}, {{taught, searched.indices, searched.mask}}, options.learning(),
                          arguments.weight);
}

/// Whether a step took numbers from the generator, or may have: one that learns draws tokens for
/// codes. A frozen step that draws nothing leaves the generator as it is.
bool draws(const VectorQuantizeStepOptions& options) {
  return options.learns() || options.search().temperature() ||
         options.search().estimator() == "directional_reparam" ||
         (options.losses().orthogonal_weight() > 0 && options.losses().orthogonal_max_codes());
}

void finish(const at::Tensor& x, const SearchedTokens& searched, const CodebookState& state,
            const VectorQuantizeArguments& arguments, const std::vector<at::Tensor>& counts,
            const VectorQuantizeStepOptions& options) {
  const bool alone = options.learning().ranks().alone();
  std::vector<at::Tensor> indices, masks, rng;
  if (draws(options)) rng.push_back(state.rng);
  // Candidates are no choice.
  if (searched.indices.dim() == 2) indices.push_back(searched.indices);
  if (searched.mask) masks.push_back(*searched.mask);
  if (counts.empty() && alone && x.sym_size(1) == 0) masks = {x.new_zeros({1}, at::kBool)};
  finish_step_({arguments.step_counts}, indices, rng, counts, masks, alone);
}

}  // namespace

VectorQuantizeStep vector_quantize_(const at::Tensor& x, const CodebookState& state,
                                    const VectorQuantizeArguments& arguments,
                                    const VectorQuantizeStepOptions& options,
                                    const std::optional<at::Tensor>& totals) {
  const auto& losses = options.losses();
  const auto& ranks = options.learning().ranks();
  if (options.finishes()) state.replaced.zero_();
  VectorQuantizeStep step;
  step.found = quantize(x, arguments.codebook, noise_rng(state.rng, ranks), arguments.mask,
                        options.search());
  const SearchedTokens searched{step.found.inputs, arguments.codebook, arguments.mask,
                                step.found.codes, step.found.indices};
  step.totals = totals ? totals : shared_totals({state.embed}, {searched}, losses, ranks)[0];

  const auto zero = searched.inputs.new_zeros({});
  step.commitment = or_zero(commitment_term(searched, arguments.targets, losses), zero);
  step.diversity = or_zero(diversity_term(searched, step.totals, losses), zero);
  const auto counts = learn(searched, state, arguments, options);
  step.orthogonal =
      or_zero(orthogonal_term(state.embed, searched.indices, state.rng, losses), zero);
  if (options.finishes()) finish(x, searched, state, arguments, counts, options);
  step.loss = weighted_sum(step, arguments.targets.has_value(), losses);
  return step;
}

void finish_step_(at::TensorList step_counts, at::TensorList indices, at::TensorList rng,
                  at::TensorList counts, at::TensorList masks, bool alone) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> chosen;
  for (const auto& level : indices) chosen.push_back(level.detach());
  ops::count_codes_(step_counts, chosen);
  for (size_t i = 0; i < rng.size(); ++i) {
    if (!counts.empty()) {
      advance_rng_(rng[i], counts[i].gt(0));
    } else if (alone && !masks.empty()) {
      advance_rng_(rng[i], masks[i]);
    } else {
      // With ranks nothing was exchanged, so nobody knows of the others' tokens: all count.
      advance_rng_(rng[i]);
    }
  }
}

at::Tensor noise_rng(const at::Tensor& rng, const distributed::SyncOptions& sync) {
  if (sync.group_name.empty()) return rng;
  const auto rank = distributed::Group(sync.group_name, {sync.label, {}}).rank();
  return at::stack({rng[0].add(rank * kSeedsApart), rng[1]});
}

}  // namespace torchvq::functional
