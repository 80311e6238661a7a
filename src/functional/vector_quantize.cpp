#include <torchvq/functional/vector_quantize.h>

#include <utility>

#include <ATen/core/grad_mode.h>

#include <torchvq/distributed/noise_rng.h>
#include <torchvq/functional/codebook.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/count_codes_.h>
#include <torchvq/ops/quantize_and_commit.h>

#include "functional/estimate.h"
#include "functional/replaced_codes.h"
#include "functional/step_checks.h"

namespace torchvq::functional {
namespace {

std::vector<at::Tensor> learn(const SearchedTokens& searched, const CodebookState& state,
                              const VectorQuantizeArguments& arguments,
                              const VectorQuantizeStepOptions& options) {
  if (!options.learns()) return {};
  auto inputs = searched.inputs.detach();
  if (const auto& affine = arguments.affine; !affine.empty()) {
    inputs = affine_inputs(inputs, affine[0], affine[1], affine[2], affine[3]);
  }
  return learn_codebooks_({state}, {{inputs, searched.indices, searched.mask}}, options.learning(),
                          arguments.weight);
}

/// Whether a step draws or may draw numbers from the generator: a learning step draws tokens to
/// replace codes. A frozen step that draws nothing leaves the generator alone.
bool draws(const VectorQuantizeStepOptions& options) {
  return options.learns() || options.search().temperature() ||
         options.search().estimator() == "directional_reparam" ||
         (options.losses().orthogonal_weight() > 0 && options.losses().orthogonal_max_codes());
}

/// The reference's losses use the tokens before a projection; without a projection, these tokens.
QuantizerLossOptions with_tokens(QuantizerLossOptions losses, const SplitTokens& split,
                                 const std::optional<at::Tensor>& mask) {
  auto& before = losses.vqp_compat();
  if (before && !before->tokens.defined()) {
    before->tokens = split.filled;
    before->mask = mask;
  }
  return losses;
}

/// The reference's diversity loss covers padding as well, which is therefore left as it is.
SplitTokens split_input(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                        const VectorQuantizeStepOptions& options) {
  const auto& layout = options.layout();
  if (!mask || !options.losses().diversity_of_padding()) return split_tokens(x, mask, layout);
  auto split = split_tokens(x, std::nullopt, layout);
  split.mask = split_mask(*mask, layout.heads(), layout.separate());
  return split;
}

/// Whether search, estimator and commitment loss can be one autograd node: one codebook without
/// heads, an estimator that reaches only x, and no other loss.
bool quantizes_plainly(const VectorQuantizeArguments& arguments,
                       const VectorQuantizeStepOptions& options) {
  const auto& [codebook, mask, targets, weight, affine, step_counts] = arguments;
  if (targets || codebook.dim() != 3 || codebook.sym_size(0) != 1) return false;
  const auto& layout = options.layout();
  if (layout.heads() != 1) return false;
  // Padding that is handed on has a gradient, whatever the estimator.
  if (mask && !layout.zeros_for_masked() && options.search().estimator() == "none") return false;
  const auto& losses = options.losses();
  if (!losses.training() || losses.commitment_weight() == 0 || losses.pulls_codes() ||
      losses.commitment_use_cross_entropy_loss() || losses.diversity_weight() != 0 ||
      losses.vqp_compat()) {
    return false;
  }
  const auto& search = options.search();
  return search.metric() == "euclidean" && !search.topk() && !search.temperature() &&
         is_plain_estimator(search.estimator(), search.sync_update_v());
}

/// Searches, and computes the losses that depend on the result.
VectorQuantizeStep search(const at::Tensor& x, const CodebookState& state,
                          const VectorQuantizeArguments& arguments,
                          const VectorQuantizeStepOptions& options,
                          const std::optional<at::Tensor>& totals) {
  const auto& layout = options.layout();
  const auto& ranks = options.learning().ranks();
  const auto split = split_input(x, arguments.mask, options);
  const auto losses = with_tokens(options.losses(), split, arguments.mask);
  const auto found =
      quantize(split.tokens, arguments.codebook, distributed::noise_rng(state.rng, ranks),
               split.mask, options.search());
  VectorQuantizeStep step;
  step.searched = {found.inputs, arguments.codebook, split.mask, found.codes, found.indices};
  step.totals = totals ? totals : shared_totals({state.embed}, {step.searched}, {losses}, ranks)[0];
  step.terms = search_losses(step.searched, arguments.targets, step.totals, losses);
  step.quantized = restore_tokens(found.quantized, x, arguments.mask, layout);
  step.indices = restore_positions(found.indices, x, layout);
  return step;
}

/// The same if quantizes_plainly(), with the same bits.
VectorQuantizeStep search_plainly(const at::Tensor& x, const VectorQuantizeArguments& arguments,
                                  const VectorQuantizeStepOptions& options) {
  const auto& codebook = arguments.codebook;
  const bool moves = options.layout().channel_first();
  const auto rows = moves ? pack_tokens(x, true) : x;
  std::optional<at::Tensor> mask;
  if (arguments.mask) mask = split_mask(*arguments.mask, 1, false);
  auto found = ops::quantize_and_commit(rows, codebook, options.search().estimator(), mask,
                                        options.layout().zeros_for_masked());
  VectorQuantizeStep step;
  auto packed = pack_tokens(rows.detach());
  if (arguments.mask) packed = fill_masked(packed, *arguments.mask);
  const auto tokens = split_heads(packed, 1, false);
  step.searched = {tokens.to(found.codes.scalar_type()), codebook, mask, found.codes,
                   found.indices.reshape_symint(tokens.sym_sizes().slice(0, 2))};
  const auto zero = found.commitment.new_zeros({});
  step.terms = {std::move(found.commitment), zero, zero};
  step.quantized = std::move(found.quantized);
  step.indices = std::move(found.indices);
  if (moves) {
    step.quantized = unpack_tokens(step.quantized, x, true);
    step.indices = unpack_positions(step.indices, x.sym_sizes(), true);
  }
  return step;
}

}  // namespace

VectorQuantizeStep vector_quantize_(const at::Tensor& x, const CodebookState& state,
                                    const VectorQuantizeArguments& arguments,
                                    const VectorQuantizeStepOptions& options,
                                    const std::optional<at::Tensor>& totals) {
  constexpr auto op = "vector_quantize_";
  TORCH_CHECK_VALUE(arguments.affine.empty() || arguments.affine.size() == 4, op,
                    ": expected affine to hold no tensor or 4, but got ", arguments.affine.size());
  check_orthogonal(options.losses());
  if (options.finishes()) check_step_counts(op, arguments.step_counts, state.embed);
  const auto& ranks = options.learning().ranks();
  const bool replaces = options.learns() && options.finishes() && options.learning().replaces();
  const ReplacedCodes replaced({state}, replaces);
  auto step = quantizes_plainly(arguments, options) ? search_plainly(x, arguments, options)
                                                    : search(x, state, arguments, options, totals);
  const auto& searched = step.searched;
  const auto counts = learn(searched, replaced.states()[0], arguments, options);
  const auto orthogonal =
      orthogonal_term(state.embed, searched.indices, state.rng, options.losses());
  if (orthogonal.defined()) step.terms.orthogonal = orthogonal;
  if (options.finishes()) {
    replaced.finish();
    std::vector<at::Tensor> masks, rng;
    if (searched.mask) masks.push_back(*searched.mask);
    if (draws(options)) rng.push_back(state.rng);
    finish_step_({arguments.step_counts}, {searched.indices}, rng, counts, masks, ranks.alone());
  }
  step.loss = total_loss(step.terms, arguments.targets.has_value(), options.losses());
  if (step.loss.dim() > 0) {  // candidates have one loss each
    step.loss = restore_positions(step.loss, x, options.layout());
    step.terms.commitment = restore_positions(step.terms.commitment, x, options.layout());
  }
  return step;
}

void finish_step_(at::TensorList step_counts, at::TensorList indices, at::TensorList rng,
                  at::TensorList counts, at::TensorList masks, bool alone,
                  const std::optional<at::Tensor>& depth) {
  TORCH_CHECK_VALUE(rng.size() <= indices.size(), "finish_step_: expected rng to hold at most ",
                    indices.size(), " tensors (those of indices), but got ", rng.size());
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> chosen;
  for (const auto& level : indices) {
    if (level.dim() == 2) chosen.push_back(level.detach());
  }
  ops::count_codes_(step_counts, chosen);
  for (size_t i = 0; i < rng.size(); ++i) {
    const auto used = [&] { return depth->gt(static_cast<int64_t>(i)); };
    if (i < counts.size()) {
      // Steps that keep their statistics count a token for each code, also of dropped levels.
      ops::advance_rng_(rng[i], depth ? counts[i].mul(used()) : counts[i]);
    } else if (!alone) {
      // A rank does not know whether others have tokens, so a step without any counts.
      ops::advance_rng_(rng[i], depth ? std::optional(used()) : std::nullopt);
    } else if (indices[i].sym_size(1) > 0) {
      ops::advance_rng_(rng[i], masks.empty() ? std::nullopt : std::optional(masks[i]));
    }
  }
}

}  // namespace torchvq::functional
