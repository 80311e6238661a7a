#include "modules/residual_beam.h"

#include <algorithm>

#include <torchvq/functional/quantize.h>
#include <torchvq/ops/residual_beam_search.h>

#include "modules/search.h"

namespace torchvq::detail {

std::vector<double> beam_weights_of(const ResidualVQImpl& rvq, int64_t depth) {
  std::vector<double> weights;
  if (const auto& given = rvq.options.beam_score_quantizer_weights()) {
    weights = *given;
  } else if (rvq.options.vq().vqp_compat()) {
    weights.assign(rvq.levels.size(), 1.0);
  }
  weights.resize(std::min<size_t>(weights.size(), depth));
  return weights;
}

std::vector<at::Tensor> search_paths(ResidualVQImpl& rvq, const at::Tensor& inputs,
                                     const StackRequest& request) {
  std::vector<at::Tensor> codebooks;
  for (int64_t index = 0; index < request.depth; ++index) {
    codebooks.push_back(stored_codes(*rvq.levels[index], inputs.scalar_type()).detach());
  }
  const auto indices = ops::residual_beam_search(inputs.detach(), codebooks, request.beam,
                                                 ops::ResidualBeamSearchOptions()
                                                     .mask(layout_of(rvq).split_mask(request.mask))
                                                     .weights(beam_weights_of(rvq, request.depth)));
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
  for (int64_t index = 0; index < levels; ++index) {
    prepare(*rvq.levels[index], residual, mask, request.frozen, request.ranks);
    if (changes) {
      const auto nearest = functional::quantize(
          residual, codebooks[index]->codes(), codebooks[index]->rng, std::nullopt,
          functional::QuantizeOptions().metric(codebooks[index]->metric()).estimator("none"));
      residual = residual.sub(nearest.codes.detach());
    }
  }
}

int64_t beam_of(const ResidualVQImpl& rvq, std::optional<int64_t> size,
                std::optional<double> temperature) {
  const auto& options = rvq.options;
  TORCH_CHECK_VALUE(size.value_or(1) >= 1,
                    "ResidualVQ: expected beam_size to be at least 1, but got ", size.value_or(1));
  TORCH_CHECK_VALUE(
      size.value_or(1) == 1 || !options.implicit_neural_codebook(),
      "ResidualVQ: expected beam_size to be 1 or none with implicit_neural_codebook, but got ",
      size.value_or(1));
  if (!size) {
    const bool evaluates = !rvq.is_training() && options.eval_beam_size();
    size = evaluates ? options.eval_beam_size() : options.beam_size();
  }
  const int64_t beam = size.value_or(1);
  const auto refuse = [&](bool given, const char* name) {
    TORCH_CHECK_VALUE(!(given && beam > 1 && rvq.is_training()), "ResidualVQ: expected ", name,
                      " to be off in training with beam_size ", beam,
                      " (use eval_beam_size for a beam in evaluation alone), but got True");
  };
  // At temperature 0 samples are the nearest codes.
  const bool samples = temperature.value_or(options.vq().sample_codebook_temp()) > 0;
  refuse(options.vq().stochastic_sample_codes() && samples, "stochastic_sample_codes");
  refuse(static_cast<bool>(options.vq().in_place_codebook_optimizer()),
         "in_place_codebook_optimizer");
  return beam;
}

}  // namespace torchvq::detail
