#include "modules/residual_beam.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/take_along_dim.h>

#include <torchvq/distributed/noise_rng.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/extend_paths.h>
#include <torchvq/ops/residual_beam_search.h>
#include <torchvq/ops/sample_codes.h>
#include <torchvq/ops/sampled_beam_search.h>

#include "functional/residual_walk.h"
#include "modules/search.h"
#include "ops/residual_paths.h"

namespace torchvq::detail {

std::vector<double> beam_weights_of(const ResidualVQImpl& rvq, int64_t depth) {
  std::vector<double> weights;
  if (const auto& given = rvq.options.beam_score_quantizer_weights()) {
    weights = *given;
    TORCH_CHECK_VALUE(weights.size() == rvq.levels.size(),
                      "ResidualVQ: expected beam_score_quantizer_weights to have ",
                      rvq.levels.size(), " numbers (those of the levels), but got ",
                      weights.size());
  } else if (rvq.options.vq().vqp_compat()) {
    weights.assign(rvq.levels.size(), 1.0);
  }
  weights.resize(std::min<size_t>(weights.size(), depth));
  return weights;
}

namespace {

/// The temperature at which a forward draws codes; 0: it takes the nearest ones.
double sampling_temperature(const ResidualVQImpl& rvq, std::optional<double> asked) {
  const auto& options = rvq.options.vq();
  if (!rvq.is_training() || !options.stochastic_sample_codes()) return 0;
  return std::max(asked.value_or(options.sample_codebook_temp()), 0.0);
}

/// The generator from which this rank draws the codes of a level.
at::Tensor drawing_rng(const ResidualVQImpl& rvq, int64_t level, const StackRequest& request) {
  const auto& rng = rvq.levels[level]->codebook_state->rng;
  return distributed::noise_rng(functional::level_rng(rng, level, rvq.options.shared_codebook()),
                                request.ranks);
}

/// The codes (H, T, w, C) that each path draws, in training with sampling; otherwise none, for all
/// codes (H, T, w, K, D).
std::optional<at::Tensor> candidates_of(const ResidualVQImpl& rvq, int64_t level,
                                        const ops::ResidualPaths& paths, const at::Tensor& codes,
                                        const StackRequest& request, int64_t block) {
  const double temperature = sampling_temperature(rvq, request.temperature);
  if (temperature == 0) return std::nullopt;
  // Each path is treated as a head with one token, because it has its own codes.
  const auto drawn =
      ops::sample_codes(paths.residual.flatten(0, 2).unsqueeze(1), codes.flatten(0, 2),
                        drawing_rng(rvq, level, request), temperature, "euclidean", block,
                        std::min(request.beam, codes.size(3)));
  const auto sorted = std::get<0>(drawn.sort(-1));
  return sorted.view(
      {paths.score.size(0), paths.score.size(1), paths.score.size(2), sorted.size(2)});
}

/// The `beam` best extensions by a level of an implicit codebook, whose codes are computed for a
/// block of paths at a time. With sampling, among `request.beam` codes that each path draws, also at
/// the last level, where one path remains.
ops::ResidualPaths extend_implicit(ResidualVQImpl& rvq, int64_t level,
                                   const ops::ResidualPaths& paths, const StackRequest& request,
                                   int64_t beam) {
  const at::NoGradGuard no_grad;
  const auto base = stored_codes(*rvq.levels[level], paths.residual.scalar_type())
                        .detach()
                        .unsqueeze(1)
                        .unsqueeze(1);
  const auto weights = beam_weights_of(rvq, rvq.num_quantizers());
  const auto weight = weights.empty() ? std::nullopt : std::optional(weights[level]);
  const int64_t step = std::max<int64_t>(1, kImplicitBlock / (base.numel() * paths.score.size(2)));
  return extend_in_blocks(paths, step, [&](const ops::ResidualPaths& block, int64_t begin) {
    auto codes = base.expand({-1, block.score.size(1), -1, -1, -1});
    if (level > 0) codes = rvq.mlps.at(level - 1)->rows(base, block.decoded.unsqueeze(3));
    const auto candidates = candidates_of(rvq, level, block, codes, request, begin / step);
    if (candidates) codes = at::take_along_dim(codes, candidates->unsqueeze(-1), -2);
    return ops::extend_paths(block, codes, beam, candidates, weight);
  });
}

at::Tensor best_implicit_paths(ResidualVQImpl& rvq, const at::Tensor& inputs,
                               const StackRequest& request) {
  auto paths = first_paths(inputs);
  for (int64_t level = 0; level < request.depth; ++level) {
    const bool last = level + 1 == request.depth;
    paths = extend_implicit(rvq, level, paths, request, last ? 1 : request.beam);
  }
  return paths.indices.squeeze(2);
}

}  // namespace

std::vector<at::Tensor> search_paths(ResidualVQImpl& rvq, const at::Tensor& inputs,
                                     const StackRequest& request) {
  if (rvq.options.implicit_neural_codebook()) {
    return best_implicit_paths(rvq, inputs.detach(), request).unbind(-1);
  }
  std::vector<at::Tensor> codebooks;
  for (int64_t level = 0; level < request.depth; ++level) {
    codebooks.push_back(stored_codes(*rvq.levels[level], inputs.scalar_type()).detach());
  }
  const auto options = ops::ResidualBeamSearchOptions()
                           .mask(layout_of(rvq).split_mask(request.mask))
                           .weights(beam_weights_of(rvq, request.depth));
  const double temperature = sampling_temperature(rvq, request.temperature);
  at::Tensor indices;
  if (temperature == 0) {
    indices = ops::residual_beam_search(inputs.detach(), codebooks, request.beam, options);
  } else {
    std::vector<at::Tensor> rngs;
    for (int64_t level = 0; level < request.depth; ++level) {
      rngs.push_back(drawing_rng(rvq, level, request));
    }
    indices = ops::sampled_beam_search(inputs.detach(), codebooks, rngs, request.beam, temperature,
                                       rvq.levels[0]->codebook_state->metric(), options);
  }
  return indices.clamp_min(0).unbind(-1);
}

void prepare_levels(ResidualVQImpl& rvq, const at::Tensor& inputs, const StackRequest& request) {
  auto codebooks = codebooks_of(rvq);
  const bool changes =
      rvq.is_training() &&
      (rvq.options.vq().affine_param() ||
       std::any_of(codebooks.begin(), codebooks.end(),
                   [](const Codebook& codebook) { return !codebook->initialised(); }));
  const auto mask = layout_of(rvq).split_mask(request.mask);
  const auto levels = std::min<int64_t>(request.depth, static_cast<int64_t>(codebooks.size()));
  auto residual = inputs.detach();
  std::optional<ops::ResidualPaths> path;
  for (int64_t index = 0; index < levels; ++index) {
    auto& level = *rvq.levels[index];
    const bool frozen = request.frozen || level.options.freeze_codebook();
    prepare(level, residual, mask, frozen, request.ranks);
    if (changes && rvq.options.implicit_neural_codebook()) {
      path = extend_implicit(rvq, index, path ? *path : first_paths(residual), request, 1);
      residual = path->residual.squeeze(2);
    } else if (changes) {
      const auto nearest = functional::quantize(
          residual, codebooks[index]->codes(), codebooks[index]->rng, std::nullopt,
          functional::QuantizeOptions().metric(codebooks[index]->metric()).estimator("none"));
      residual = residual.sub(nearest.codes.detach());
    }
  }
}

int64_t beam_of(const ResidualVQImpl& rvq, std::optional<int64_t> size) {
  const auto& options = rvq.options;
  if (!size) {
    const bool evaluates = !rvq.is_training() && options.eval_beam_size();
    size = evaluates ? options.eval_beam_size() : options.beam_size();
  }
  const int64_t beam = size.value_or(1);
  TORCH_CHECK_VALUE(beam >= 1, "ResidualVQ: expected beam_size to be at least 1, but got ", beam);
  const bool learns_in_place = rvq.is_training() && options.vq().in_place_codebook_optimizer();
  TORCH_CHECK_VALUE(beam == 1 || !learns_in_place,
                    "ResidualVQ: expected beam_size to be 1 in training with "
                    "in_place_codebook_optimizer, but got ",
                    beam, " (use eval_beam_size for a beam in evaluation)");
  return beam;
}

}  // namespace torchvq::detail
