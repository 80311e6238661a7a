#include "modules/residual_levels.h"

#include <torchvq/distributed/noise_rng.h>
#include <torchvq/ops/straight_through.h>

#include "modules/losses.h"
#include "modules/residual_beam.h"
#include "modules/residual_in_place.h"
#include "modules/search.h"

namespace torchvq::detail {
namespace {

namespace F = functional;
using OptionalTensor = std::optional<at::Tensor>;

/// Whether the gradient of the output is the sum or the mean over levels, instead of one
/// estimator over the stack.
bool estimates_levels(const ResidualVQImpl& rvq) {
  const auto& first = rvq.options.vq();
  const bool by_codes = first.straight_through() && !first.route_gradients_to_input();
  // Each level rotates by its own angle, normalizes its own input, and simulates its own error; but
  // noise must not reach the condition of implicit codes, which decoding computes, too.
  const bool simulates = first.directional_reparam() && !rvq.options.implicit_neural_codebook();
  const bool several = rvq.num_quantizers() > 1;
  const bool own = first.use_cosine_sim() ||
                   (several && (rvq.levels[0]->resolved().rotation_trick || simulates));
  return rvq.is_training() && !rvq.options.diveq() && (first.vqp_compat() || by_codes || own);
}

Level choose_level(ResidualVQImpl& rvq, int64_t index, const at::Tensor& residual,
                   std::optional<Implicit> implicit, const StackRequest& request,
                   const F::StackGradient& gradient, const OptionalTensor& chosen) {
  auto& vq = *rvq.levels[index];
  const auto layout = layout_of(rvq);
  const auto mask = layout.split_mask(request.mask);
  const auto targets =
      request.targets.empty() ? std::nullopt : OptionalTensor(request.targets[index]);
  const bool frozen = request.frozen || vq.options.freeze_codebook();
  const auto own_request =
      request_of_level(vq, targets, request.mask, request.temperature, frozen, request.ranks);
  const bool shared = rvq.options.shared_codebook();
  if (!chosen && (index == 0 || !shared)) {
    prepare(vq, residual, mask, own_request.frozen, request.ranks);
  }
  if (index == 0 && shared && !request.frozen) {
    step_shared_optimizer(rvq, residual, request);
  }
  const auto tokens = layout.merge_features(residual, request.batch, request.tokens);
  // With one estimator over the stack, levels need their own only for the gradient between levels.
  const bool own = vq.is_training() && gradient.needs_levels();
  const auto estimator = own ? std::nullopt : std::optional<std::string>("none");
  const auto rng = F::level_rng(vq.codebook_state->rng, index, shared);
  auto result = implicit
                    ? choose_implicit(vq, *implicit, residual, tokens, mask, own_request, estimator,
                                      distributed::noise_rng(rng, request.ranks), chosen)
                    : choose(vq, residual, tokens, mask, own_request,
                             {.estimator = estimator, .rng = rng, .chosen = chosen});
  return {&vq, own_request, std::move(result), std::move(implicit)};
}

}  // namespace

bool codes_learn(const ResidualVQImpl& rvq) {
  const auto& codebook = *rvq.levels[0]->codebook_state;
  return takes_gradient(codebook.embed) || rvq.options.implicit_neural_codebook();
}

bool sees_padding(const ResidualVQImpl& rvq) {
  return sees_padding(rvq.options.vq(), rvq.is_training());
}

F::StackGradient gradient_of(const ResidualVQImpl& rvq, const at::Tensor& inputs) {
  const auto& first = *rvq.levels[0];
  const bool training = rvq.is_training(), diveq = rvq.options.diveq();
  return F::stack_gradient(
      training, estimates_levels(rvq), diveq ? 1 : rvq.options.quant_grad_frac(),
      F::EstimateOptions()
          .estimator(diveq && training ? "directional_reparam"
                                       : estimator_of(first, inputs, codes_learn(rvq)))
          .variance(first.options.directional_reparam_variance())
          .sync_update_v(training ? first.options.sync_update_v() : 0),
      first.options.vqp_compat());
}

Layout layout_of(const ResidualVQImpl& rvq) {
  auto layout = layout_of(rvq.levels[0]->options, "ResidualVQ");
  layout.dim = rvq.options.dim();
  return layout;
}

std::vector<VectorQuantizeImpl*> levels_of(const ResidualVQImpl& rvq) {
  std::vector<VectorQuantizeImpl*> levels;
  for (const auto& level : rvq.levels) levels.push_back(level.ptr().get());
  return levels;
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

std::vector<F::CodebookState> states_of(const ResidualVQImpl& rvq, bool learns) {
  // One call serves all levels, so all learn if the first does.
  learns &= rvq.levels[0]->codebook_state->learns(rvq.levels[0]->resolved().ema_update);
  std::vector<F::CodebookState> states;
  for (auto& codebook : codebooks_of(rvq)) states.push_back(codebook->state(learns));
  return states;
}

Walk walk(ResidualVQImpl& rvq, const at::Tensor& inputs, const StackRequest& request) {
  const auto gradient = gradient_of(rvq, inputs);
  const bool implicit_codes = rvq.options.implicit_neural_codebook();
  std::vector<at::Tensor> paths;
  if (request.beam > 1) {
    prepare_levels(rvq, inputs, request);
    paths = search_paths(rvq, inputs, request);
  }
  const F::LevelsInUse used{request.depth, !request.targets.empty()};
  const auto compared = F::compared_inputs(inputs, gradient, used);
  Walk result;
  const auto choose = [&](int64_t index, const at::Tensor& residual,
                          const F::LevelSums& before) -> F::WalkedLevel {
    std::optional<Implicit> implicit;
    if (index > 0 && implicit_codes) {
      // The value must be that of decoding, so the estimator adds no noise. Only losses give codes
      // that a network computes a gradient, and so the condition.
      const bool by_outputs = gradient.estimates_levels || !gradient.training;
      const auto condition =
          by_outputs ? before.outputs : ops::straight_through(compared, before.codes);
      implicit =
          Implicit{rvq.mlps.at(index - 1).get(), F::scored_inputs(condition, gradient, used)};
    }
    auto level = choose_level(rvq, index, residual, std::move(implicit), request, gradient,
                              paths.empty() ? std::nullopt : OptionalTensor(paths[index]));
    auto& searched = level.result.searched;
    searched.inputs = F::scored_inputs(searched.inputs, gradient, used);
    F::WalkedLevel walked{searched.codes, level.result.quantized};
    if (const auto& mask = searched.mask; mask && sees_padding(rvq)) {
      walked = F::passed_by_padding(walked, residual, *mask,
                                    rvq.options.return_zeros_for_masked_padding());
    }
    result.levels.push_back(std::move(level));
    return walked;
  };
  const auto sums = F::walk_levels(compared, request.depth, gradient,
                                   gradient.estimates_levels || implicit_codes, choose);
  result.output =
      F::stack_output(inputs, sums, rvq.levels[0]->codebook_state->rng, request.ranks, gradient);
  return result;
}

}  // namespace torchvq::detail
