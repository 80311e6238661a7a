#include "modules/residual_levels.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/estimate.h>
#include <torchvq/functional/residual_quantize.h>
#include <torchvq/functional/vector_quantize.h>
#include <torchvq/ops/straight_through.h>

#include "modules/ranks.h"
#include "modules/residual_beam.h"
#include "modules/residual_engine.h"
#include "modules/residual_in_place.h"
#include "modules/search.h"

namespace torchvq::detail {
namespace {

namespace F = functional;
using OptionalTensor = std::optional<at::Tensor>;

double gradient_fraction(const ResidualVQImpl& rvq) {
  return rvq.options.diveq() ? 1 : rvq.options.quant_grad_frac();
}

/// What the next level no longer sees: the output, of whose gradient it hands on a fraction.
at::Tensor taken(const at::Tensor& output, double fraction) {
  if (fraction == 0) {
    return output.detach();
  }
  return fraction == 1 ? output : output.mul(fraction).add(output.detach().mul(1 - fraction));
}

/// Levels that share a codebook draw different numbers from it.
at::Tensor level_rng(const ResidualVQImpl& rvq, int64_t index) {
  const auto& rng = rvq.levels[index]->codebook_state->rng;
  if (index == 0 || !rvq.options.shared_codebook()) {
    return rng;
  }
  return at::stack({rng[0].add(index), rng[1]});
}

/// The sum of the codes with the gradient of one estimator between input and sum, whatever the
/// number of levels.
at::Tensor estimate_stack(const ResidualVQImpl& rvq, const at::Tensor& inputs,
                          const at::Tensor& total, const Ranks& ranks) {
  const auto& first = *rvq.levels[0];
  const bool diveq = rvq.options.diveq() && rvq.is_training();
  return F::estimate(inputs, total, functional::noise_rng(first.codebook_state->rng, ranks),
                     F::EstimateOptions()
                         .estimator(diveq ? "directional_reparam" : estimator_of(first))
                         .variance(first.options.directional_reparam_variance())
                         .sync_update_v(rvq.is_training() ? first.options.sync_update_v() : 0));
}

/// The inputs as the levels' losses see them.
at::Tensor compared_inputs(const ResidualVQImpl& rvq, const at::Tensor& inputs,
                           const Request& request) {
  if (!rvq.is_training() || estimates_levels(rvq) || !request.targets.empty()) {
    return inputs;
  }
  return F::balanced(inputs, request.depth, 1 - gradient_fraction(rvq));
}

Level choose_level(ResidualVQImpl& rvq, int64_t index, const at::Tensor& residual,
                   std::optional<Implicit> implicit, const Request& request,
                   const OptionalTensor& picked) {
  auto& vq = *rvq.levels[index];
  const auto layout = layout_of(rvq);
  const auto mask = layout.split_mask(request.mask);
  const auto targets =
      request.targets.empty() ? std::nullopt : OptionalTensor(request.targets[index]);
  const auto call =
      level_call(vq, targets, request.mask, request.temperature, request.frozen, request.ranks);
  const bool shared = rvq.options.shared_codebook();
  if (!picked && (index == 0 || !shared)) {
    prepare(vq, residual, mask, call.frozen, request.ranks);
  }
  if (index == 0 && shared && !request.frozen) {
    step_shared_optimizer(rvq, residual, request);
  }
  const auto tokens = layout.merge_features(residual, request.batch, request.tokens);
  // Where the stack has one estimator, the levels need none but for the gradient between them.
  const bool own = vq.is_training() && (estimates_levels(rvq) || gradient_fraction(rvq) > 0);
  const auto estimator = own ? estimator_of(vq) : "none";
  const auto rng = level_rng(rvq, index);
  auto choice = implicit ? choose_implicit(vq, *implicit, residual, tokens, mask, call, estimator,
                                           functional::noise_rng(rng, request.ranks))
                         : choose(vq, residual, tokens, mask, call,
                                  {.estimator = estimator, .rng = rng, .picked = picked});
  return {&vq, call, std::move(choice), std::move(implicit)};
}

}  // namespace

bool estimates_levels(const ResidualVQImpl& rvq) {
  const auto& first = rvq.options.vq();
  const bool by_codes = first.straight_through() && !first.route_gradients_to_input();
  return rvq.is_training() && !rvq.options.diveq() && (first.vqp_compat() || by_codes);
}

Layout layout_of(const ResidualVQImpl& rvq) {
  auto layout = layout_of(rvq.levels[0]->options, "ResidualVQ");
  layout.dim = rvq.options.dim();
  return layout;
}

std::vector<Codebook> codebooks_of(const ResidualVQImpl& rvq) {
  std::vector<Codebook> codebooks;
  for (const auto& level : rvq.levels) {
    if (codebooks.empty() || !rvq.options.shared_codebook()) {
      codebooks.push_back(level->codebook_state);
    }
  }
  return codebooks;
}

Walk walk(ResidualVQImpl& rvq, const at::Tensor& inputs, const Request& request) {
  const bool by_levels = estimates_levels(rvq);
  // The sum of the levels' own outputs, where it is these that have a gradient.
  const bool sums_outputs = by_levels || rvq.options.implicit_neural_codebook();
  auto summed = sums_outputs ? at::zeros_like(inputs) : at::Tensor();
  std::vector<at::Tensor> paths;
  if (request.beam > 1) {
    prepare_levels(rvq, inputs, request);
    paths = search_paths(rvq, inputs, request);
  }
  const auto compared = compared_inputs(rvq, inputs, request);
  const double fraction = rvq.is_training() ? gradient_fraction(rvq) : 0;
  Walk result;
  const auto choose = [&](int64_t index, const at::Tensor& residual,
                          const at::Tensor& total) -> Passed {
    std::optional<Implicit> implicit;
    if (index > 0 && rvq.options.implicit_neural_codebook()) {
      // Its value must be what decoding finds, so no estimator with noise.
      const auto condition =
          by_levels || !rvq.is_training() ? summed : ops::straight_through(compared, total);
      implicit = Implicit{rvq.mlps[index - 1].get(), condition};
    }
    auto level = choose_level(rvq, index, residual, std::move(implicit), request,
                              paths.empty() ? std::nullopt : OptionalTensor(paths[index]));
    const auto& output = level.choice.quantized;
    if (sums_outputs) summed = summed.add(output);
    Passed passed{level.choice.chosen.codes, taken(output, fraction)};
    result.levels.push_back(std::move(level));
    return passed;
  };
  const auto total = walk_levels(compared, request.depth, choose);
  result.output = by_levels ? summed : estimate_stack(rvq, inputs, total, request.ranks);
  return result;
}

}  // namespace torchvq::detail
