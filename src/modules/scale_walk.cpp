#include "modules/scale_walk.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <torchvq/functional/layout.h>
#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/functional/scales.h>

#include "functional/residual_walk.h"
#include "functional/step_tokens.h"
#include "modules/learn_levels.h"
#include "modules/losses.h"
#include "modules/ranks.h"
#include "modules/search.h"

namespace torchvq::detail {
namespace {

namespace F = functional;
using Counts = std::vector<at::Tensor>;

/// The result of one scale.
struct Scale {
  VectorQuantizeImpl* vq;
  Request request;
  SearchResult result;
  F::QuantizerLossOptions options;
  F::QuantizerLosses losses;
};

/// Reshapes (B, L, ...) to (1, B * L, ...), the shape in which codebooks take tokens.
at::Tensor as_one(const at::Tensor& rows) { return rows.flatten(0, 1).unsqueeze(0); }

/// k-means on the first training tokens of all scales together, because the coarsest
/// scale has few per sample.
void prepare_shared(HierarchicalVQImpl& hvq, const at::Tensor& maps, const ScaleRequest& request) {
  const at::NoGradGuard no_grad;
  auto& vq = hvq.get_vq(0);
  if (vq.codebook_state->initialised()) return;
  const int64_t scales = hvq.is_training() && !hvq.options.vqp_compat() ? hvq.num_levels() : 1;
  std::vector<at::Tensor> tokens, masks;
  auto residual = maps;
  for (int64_t index = 0; index < scales; ++index) {
    const auto& shape = hvq.resolved().shapes[index];
    tokens.push_back(F::pool_scale(residual, shape, request.mask));
    if (request.mask) masks.push_back(F::pool_scale_mask(*request.mask, shape));
    if (index + 1 < scales) {
      // There are no codes yet, so the residual is computed from unquantized tokens.
      residual = residual.sub(hvq.choose_phi(index)(tokens.back(), shape, maps.sizes().slice(2)));
    }
  }
  const auto mask = masks.empty() ? std::nullopt : std::optional(at::cat(masks, 1).view({1, -1}));
  prepare(vq, as_one(at::cat(tokens, 1)), mask, freezes(hvq, vq, request.frozen), request.ranks);
}

Scale choose_scale(HierarchicalVQImpl& hvq, int64_t index, const at::Tensor& residual,
                   const ScaleRequest& request) {
  auto& vq = hvq.get_vq(index);
  const auto& shape = hvq.resolved().shapes[index];
  const auto tokens = F::pool_scale(residual, shape, request.mask);
  std::optional<at::Tensor> cell_mask, mask;
  if (request.mask) {
    cell_mask = F::pool_scale_mask(*request.mask, shape);
    mask = cell_mask->view({1, -1});
  }
  const auto targets =
      request.targets.empty() ? std::nullopt : std::optional(request.targets[index]);
  auto own_request = request_of_level(vq, targets, cell_mask, request.temperature,
                                      freezes(hvq, vq, request.frozen), request.ranks);
  const auto projected = as_one(tokens);
  const bool shared = hvq.options.shared_codebook();
  if (!shared) prepare(vq, projected, mask, own_request.frozen, request.ranks);
  const bool draws = vq.options.stochastic_sample_codes() || vq.options.directional_reparam();
  const auto rng = F::level_rng(vq.codebook_state->rng, index, shared && draws);
  auto result = choose(vq, projected, tokens, mask, own_request,
                       {.estimator = std::nullopt, .rng = rng, .chosen = std::nullopt});
  auto options = loss_options(vq, tokens, own_request);
  auto losses =
      F::search_losses(result.searched, targets_of(vq, own_request), std::nullopt, options);
  return {&vq, std::move(own_request), std::move(result), std::move(options), std::move(losses)};
}

/// The map of a scale's codes; masked cells hold zero vectors.
at::Tensor spread(const HierarchicalVQImpl& hvq, int64_t index, const Scale& scale,
                  const at::Tensor& maps) {
  auto codes = scale.result.quantized.view(scale.result.tokens.sizes());
  if (scale.request.mask) codes = F::fill_masked(codes, *scale.request.mask);
  return hvq.choose_phi(index)(codes, hvq.resolved().shapes[index], maps.sizes().slice(2));
}

/// The weighted loss of one scale, a scalar, after its codebook has learnt.
at::Tensor loss_of(const Scale& scale) {
  return level_loss(*scale.vq, scale.result.searched, scale.request, scale.losses, scale.options);
}

F::StepTokens tokens_of(const Scale& scale) {
  const auto& searched = scale.result.searched;
  return {searched.inputs.detach(), searched.indices, searched.mask};
}

/// The tokens of all scales as those of one step, ordered by sample, so that the tokens of several
/// ranks, concatenated, are those of the whole batch.
F::StepTokens together(const std::vector<Scale>& scales) {
  std::vector<at::Tensor> inputs, indices, masks;
  for (const auto& scale : scales) {
    const auto& searched = scale.result.searched;
    const auto rows = [&](const at::Tensor& part) {
      auto shape = part.sizes().vec();
      shape[0] = scale.result.tokens.size(0);
      shape[1] = scale.result.tokens.size(1);
      return part.reshape(shape);
    };
    inputs.push_back(rows(searched.inputs.detach()));
    indices.push_back(rows(searched.indices));
    if (searched.mask) masks.push_back(rows(*searched.mask));
  }
  return {as_one(at::cat(inputs, 1)), as_one(at::cat(indices, 1)),
          masks.empty() ? std::nullopt : std::optional(as_one(at::cat(masks, 1)))};
}

/// One update of the codebooks of `quantizers`; those of dropped scales take part without tokens.
/// Returns the tokens per code of each, over all ranks; see learn_together().
Counts learn_scales(const HierarchicalVQImpl& hvq, const std::vector<Scale>& scales,
                    const std::vector<VectorQuantizeImpl*>& quantizers,
                    const ScaleRequest& request) {
  std::vector<LearningLevel> levels;
  for (const auto* vq : quantizers) {
    const bool learns = trains(*vq, freezes(hvq, *vq, request.frozen));
    const auto place = levels.size();
    const auto tokens = hvq.options.shared_codebook()
                            ? together(scales)
                            : tokens_of(scales[std::min(place, scales.size() - 1)]);
    const bool used = learns && place < scales.size();
    levels.push_back({vq, used ? tokens : F::no_tokens(tokens), learns});
  }
  const bool any = std::any_of(levels.begin(), levels.end(),
                               [](const LearningLevel& level) { return level.trains; });
  // As fast as in the reference, whose averages decay once per scale, dropped ones included.
  const auto decays =
      hvq.options.shared_codebook() && !hvq.options.vqp_compat() ? hvq.num_levels() : 1;
  return any ? learn_together(levels, request.ranks, decays) : Counts(levels.size());
}

/// Counts the use of codes, for stats(), and advances the step.
void finish_scales(HierarchicalVQImpl& hvq, const std::vector<Scale>& scales, const Counts& counts,
                   const ScaleRequest& request) {
  std::vector<at::Tensor> uses;
  for (int64_t index = 0; index < hvq.num_levels(); ++index) {
    // New tensors, so that a copy of the module keeps its own.
    uses.push_back(hvq.get_vq(index).codebook_state->fresh_counts());
  }
  std::vector<FinishedLevel> finished;
  for (const auto& scale : scales) {
    const auto& vq = *scale.vq;
    const auto place = finished.size();
    finished.push_back(
        {vq.codebook_state->rng, tokens_of(scale),
         place < counts.size() ? counts[place] : at::Tensor(),
         draws(vq, freezes(hvq, vq, request.frozen)) || hvq.options.nested_dropout() > 0});
  }
  finish_levels(uses, finished, request.ranks);
  hvq.step_counts = std::move(uses);
  for (size_t index = 0; index < hvq.vqs.size(); ++index) {
    hvq.vqs[index]->step_counts = hvq.step_counts[index];
  }
  // The quantizer's own counts are those of all scales.
  if (hvq.options.shared_codebook()) hvq.vqs[0]->step_counts = at::stack(hvq.step_counts).sum(0);
}

/// The mean over the scales in use.
at::Tensor mean_loss(const HierarchicalVQImpl& hvq, const std::vector<at::Tensor>& losses,
                     int64_t depth) {
  auto loss = losses[0];
  for (int64_t index = 1; index < depth; ++index) loss = loss.add(losses[index]);
  loss = loss.div(depth);
  if (!hvq.is_training()) return loss;
  // DDP waits for a gradient of every parameter, so those of dropped scales get zero.
  for (int64_t index = depth; index < hvq.num_levels(); ++index) {
    for (const auto& weight : hvq.choose_phi(index)->parameters()) {
      loss = loss.add(weight.flatten().slice(0, 0, 0).sum().to(loss.scalar_type()));
    }
  }
  return loss;
}

}  // namespace

bool freezes(const HierarchicalVQImpl& hvq, const VectorQuantizeImpl& vq,
             const std::optional<bool>& asked) {
  return asked.value_or(hvq.options.freeze_codebook() || vq.options.freeze_codebook());
}

ScaleWalk walk_scales(HierarchicalVQImpl& hvq, const at::Tensor& maps,
                      const ScaleRequest& request) {
  const bool in_turn = hvq.is_training() && hvq.options.vqp_compat();
  // In the reference, dropped scales search and learn like the others.
  const auto walked = in_turn ? hvq.num_levels() : request.depth;
  if (hvq.options.shared_codebook()) prepare_shared(hvq, maps, request);
  at::Tensor residual = maps, output;
  std::vector<Scale> scales;
  std::vector<at::Tensor> losses;
  Counts counts;
  for (int64_t index = 0; index < walked; ++index) {
    scales.push_back(choose_scale(hvq, index, residual, request));
    const auto& scale = scales.back();
    const auto decoded = spread(hvq, index, scale, maps);
    if (in_turn) {
      const auto learnt = learn_scales(hvq, {scale}, {scale.vq}, request);
      counts.insert(counts.end(), learnt.begin(), learnt.end());
      losses.push_back(loss_of(scale));
    }
    if (index < request.depth) output = output.defined() ? output.add(decoded) : decoded;
    if (index + 1 < walked) residual = residual.sub(decoded);
  }
  if (!in_turn) {
    std::vector<VectorQuantizeImpl*> quantizers;
    for (const auto& vq : hvq.vqs) quantizers.push_back(vq.ptr().get());
    counts = learn_scales(hvq, scales, quantizers, request);
    for (const auto& scale : scales) losses.push_back(loss_of(scale));
  }
  if (hvq.is_training()) finish_scales(hvq, scales, counts, request);
  ScaleWalk done{output, {}, mean_loss(hvq, losses, request.depth)};
  for (const auto& scale : scales) done.indices.push_back(scale.result.searched.indices);
  return done;
}

}  // namespace torchvq::detail
