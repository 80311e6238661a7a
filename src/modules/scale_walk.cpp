#include "modules/scale_walk.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/accumulate.h>

#include <torchvq/functional/hierarchical_quantize.h>
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
void prepare_shared(HierarchicalVQImpl& hvq, const std::function<at::Tensor()>& map_of_rows,
                    const ScaleRequest& request) {
  const at::NoGradGuard no_grad;
  auto& vq = hvq.get_vq(0);
  if (vq.codebook_state->initialised()) return;
  const auto maps = map_of_rows();
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
F::StepTokens together(const HierarchicalVQImpl& hvq, const std::vector<F::StepTokens>& scales,
                       int64_t batch) {
  std::vector<at::Tensor> inputs, indices, masks;
  for (const auto& scale : scales) {
    const int64_t cells = c10::multiply_integers(hvq.resolved().shapes[inputs.size()]);
    inputs.push_back(scale.x.view({batch, cells, scale.x.size(-1)}));
    indices.push_back(scale.indices.view({batch, cells}));
    if (scale.mask) masks.push_back(scale.mask->view({batch, cells}));
  }
  return {as_one(at::cat(inputs, 1)), as_one(at::cat(indices, 1)),
          masks.empty() ? std::nullopt : std::optional(as_one(at::cat(masks, 1)))};
}

/// One update of the codebooks of `quantizers`; those of dropped scales take part without tokens.
/// Returns the tokens per code of each, over all ranks; see learn_together().
Counts learn_scales(const HierarchicalVQImpl& hvq, const std::vector<F::StepTokens>& scales,
                    const std::vector<VectorQuantizeImpl*>& quantizers,
                    const ScaleRequest& request) {
  std::vector<LearningLevel> levels;
  for (const auto* vq : quantizers) {
    const bool learns = trains(*vq, freezes(hvq, *vq, request.frozen));
    const auto place = levels.size();
    const auto& tokens = scales[std::min(place, scales.size() - 1)];
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

/// One update from the tokens of all scales; a shared codebook learns from `joined`.
Counts learn_all(const HierarchicalVQImpl& hvq, const std::vector<F::StepTokens>& scales,
                 const F::StepTokens& joined, const ScaleRequest& request) {
  std::vector<VectorQuantizeImpl*> quantizers;
  for (const auto& vq : hvq.vqs) quantizers.push_back(vq.ptr().get());
  const bool shared = hvq.options.shared_codebook();
  return learn_scales(hvq, shared ? std::vector{joined} : scales, quantizers, request);
}

/// Counts the use of codes, for stats(), and advances the step.
void finish_scales(HierarchicalVQImpl& hvq, const std::vector<F::StepTokens>& scales,
                   const Counts& counts, const ScaleRequest& request) {
  std::vector<at::Tensor> uses;
  for (int64_t index = 0; index < hvq.num_levels(); ++index) {
    // New tensors, so that a copy of the module keeps its own.
    uses.push_back(hvq.get_vq(index).codebook_state->fresh_counts());
  }
  std::vector<FinishedLevel> finished;
  for (const auto& scale : scales) {
    const auto place = finished.size();
    const auto& vq = hvq.get_vq(static_cast<int64_t>(place));
    finished.push_back(
        {vq.codebook_state->rng, scale, place < counts.size() ? counts[place] : at::Tensor(),
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

/// The loss, with a gradient of zero for dropped scales, for which DDP waits.
at::Tensor reach_dropped(const HierarchicalVQImpl& hvq, at::Tensor loss, int64_t depth) {
  for (int64_t index = depth; hvq.is_training() && index < hvq.num_levels(); ++index) {
    for (const auto& weight : hvq.choose_phi(index)->parameters()) {
      loss = loss.add(weight.flatten().slice(0, 0, 0).sum().to(loss.scalar_type()));
    }
  }
  return loss;
}

/// Searches one scale after the other; maps (B, D, *S).
ScaleWalk walk_in_turn(HierarchicalVQImpl& hvq, const at::Tensor& maps,
                       const ScaleRequest& request) {
  const bool in_turn = hvq.is_training() && hvq.options.vqp_compat();
  // In the reference, dropped scales search and learn like the others.
  const auto walked = in_turn ? hvq.num_levels() : request.depth;
  at::Tensor residual = maps, output;
  std::vector<Scale> scales;
  std::vector<F::StepTokens> tokens;
  std::vector<at::Tensor> losses;
  ScaleWalk done;
  for (int64_t index = 0; index < walked; ++index) {
    scales.push_back(choose_scale(hvq, index, residual, request));
    const auto& scale = scales.back();
    tokens.push_back(tokens_of(scale));
    const auto decoded = spread(hvq, index, scale, maps);
    if (in_turn) {
      const auto learnt = learn_scales(hvq, {tokens.back()}, {scale.vq}, request);
      done.counts.insert(done.counts.end(), learnt.begin(), learnt.end());
      losses.push_back(loss_of(scale));
    }
    if (index < request.depth) output = output.defined() ? output.add(decoded) : decoded;
    if (index + 1 < walked) residual = residual.sub(decoded);
  }
  if (!in_turn) {
    const auto joined =
        hvq.options.shared_codebook() ? together(hvq, tokens, maps.size(0)) : F::StepTokens{};
    done.counts = learn_all(hvq, tokens, joined, request);
    for (const auto& scale : scales) losses.push_back(loss_of(scale));
  }
  done.output = output.flatten(2).transpose(1, 2);
  done.tokens = std::move(tokens);
  auto loss = losses[0];
  for (int64_t index = 1; index < request.depth; ++index) loss = loss.add(losses[index]);
  done.loss = loss.div(request.depth);
  return done;
}

// By one operator ---------------------------------------------------------------------------------

/// The options of a scale of which the operator has one value for all.
auto options_of_all(const VectorQuantizeImpl& vq) {
  const auto& options = vq.options;
  return std::make_tuple(vq.is_training(), options.commitment_weight(), options.rotation_trick(),
                         options.straight_through(), options.directional_reparam(),
                         options.route_gradients_to_input());
}

/// Whether a scale is searched for the nearest codes by an estimator of the operator, and has no loss
/// but the commitment loss.
bool is_plain(const VectorQuantizeImpl& vq, const at::Tensor& rows) {
  const auto& options = vq.options;
  const bool scores = options.orthogonal_reg_weight() > 0 ||
                      options.codebook_diversity_loss_weight() > 0 ||
                      options.commitment_use_cross_entropy_loss();
  if (scores || options.stochastic_sample_codes() || options.sync_update_v() > 0) return false;
  const bool learns_otherwise = vq.resolved().learnable_codebook || vq.learns_in_place() ||
                                options.affine_param() || vq.codebook_state->embed.requires_grad();
  if (learns_otherwise || vq.codebook_state->metric() != "euclidean" || options.heads() > 1) {
    return false;
  }
  const auto estimator = estimator_of(vq, rows, /*codes_learn=*/false);
  return estimator == "straight_through" || estimator == "rotation_trick" || estimator == "none";
}

bool walks_at_once(const HierarchicalVQImpl& hvq, const at::Tensor& rows,
                   const ScaleRequest& request) {
  if (hvq.options.vqp_compat() || request.mask || !request.targets.empty()) return false;
  const auto& first = hvq.get_vq(0);
  if (hvq.is_training() != first.is_training()) return false;
  return std::all_of(hvq.vqs.begin(), hvq.vqs.end(), [&](const VectorQuantize& vq) {
    const bool prepared = hvq.options.shared_codebook() || vq->codebook_state->initialised();
    return prepared && is_plain(*vq, rows) && options_of_all(*vq) == options_of_all(first);
  });
}

ScaleWalk walk_at_once(HierarchicalVQImpl& hvq, const at::Tensor& rows, at::IntArrayRef positions,
                       const ScaleRequest& request) {
  std::vector<at::Tensor> codebooks;
  F::HierarchicalQuantizeOptions options;
  for (int64_t index = 0; index < request.depth; ++index) {
    codebooks.push_back(stored_codes(hvq.get_vq(index), rows.scalar_type()));
    options.sizes().push_back(hvq.resolved().shapes[index]);
    options.convolutions().push_back(hvq.resolved().convolutions[index]);
  }
  F::ScaleConvolutions convolutions;
  for (const auto& phi : hvq.phis) {
    convolutions.weights.push_back(phi->conv->weight);
    convolutions.biases.push_back(phi->conv->bias);
  }
  const auto& first = hvq.get_vq(0);
  options.ratio(std::abs(hvq.options.quant_resi()))
      .estimator(estimator_of(first, rows, /*codes_learn=*/false))
      .commitment_weight(first.has_commitment_loss() ? first.options.commitment_weight() : 0)
      .training(hvq.is_training());
  const auto found = F::hierarchical_quantize(rows, c10::fromIntArrayRefSlow(positions), codebooks,
                                              convolutions, options);
  ScaleWalk done{found.quantized, {}, {}, found.loss};
  int64_t end = 0;
  for (const auto& indices : found.indices) {
    const auto begin = hvq.is_training() ? end : 0;
    end = begin + (hvq.is_training() ? indices.size(1) : 0);
    done.tokens.push_back(
        {as_one(found.tokens.slice(1, begin, end)), as_one(indices), std::nullopt});
  }
  if (hvq.is_training()) {
    done.counts = learn_all(hvq, done.tokens,
                            {as_one(found.tokens), as_one(found.token_indices), {}}, request);
  }
  return done;
}

}  // namespace

bool freezes(const HierarchicalVQImpl& hvq, const VectorQuantizeImpl& vq,
             const std::optional<bool>& asked) {
  return asked.value_or(hvq.options.freeze_codebook() || vq.options.freeze_codebook());
}

ScaleWalk walk_scales(HierarchicalVQImpl& hvq, const at::Tensor& rows, at::IntArrayRef positions,
                      const ScaleRequest& request) {
  const auto map_of_rows = [&] {
    std::vector<int64_t> shape{rows.size(0), rows.size(2)};
    shape.insert(shape.end(), positions.begin(), positions.end());
    return rows.transpose(1, 2).reshape(shape);
  };
  if (hvq.options.shared_codebook()) prepare_shared(hvq, map_of_rows, request);
  auto done = walks_at_once(hvq, rows, request) ? walk_at_once(hvq, rows, positions, request)
                                                : walk_in_turn(hvq, map_of_rows(), request);
  if (hvq.is_training()) finish_scales(hvq, done.tokens, done.counts, request);
  done.loss = reach_dropped(hvq, done.loss, request.depth);
  return done;
}

}  // namespace torchvq::detail
