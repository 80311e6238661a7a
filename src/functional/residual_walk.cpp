#include "functional/residual_walk.h"

#include <cmath>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/distributed/noise_rng.h>
#include <torchvq/ops/straight_through.h>

#include "detail/readable.h"

namespace torchvq::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A copy of x with its gradient times a number, by one node.
struct ScaledGradient : torch::autograd::Function<ScaledGradient> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double gain) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->saved_data["gain"] = gain;
    ctx->set_materialize_grads(false);
    return x.clone();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor none;
    if (!grads[0].defined()) return {none, none};
    return {grads[0].mul(ctx->saved_data["gain"].toDouble()), none};
  }
};

/// x with its gradient times a number.
at::Tensor with_gradient_times(const at::Tensor& x, double gain) {
  if (gain == 1) return x;
  if (detail::may_shorten_graph(x) && detail::needs_gradient(x)) {
    return ScaledGradient::apply(x, gain);
  }
  // A copy without a gradient, too: levels save it, and callers may write to theirs.
  return ops::straight_through(x.mul(gain), x.detach());
}

/// The part of a level's output that is subtracted from the residual: its gradient is scaled by the
/// fraction that is handed on. The value is exact: the residual of a training step is that of
/// evaluation.
at::Tensor handed_to_next(const at::Tensor& output, const StackGradient& gradient) {
  const double fraction = gradient.training ? gradient.handed_on : 0;
  return fraction == 0 ? output.detach() : with_gradient_times(output, fraction);
}

/// x with its gradient times sum(ratio^n, n < levels), or divided by it.
at::Tensor with_gain(const at::Tensor& x, int64_t levels, double ratio,
                     const std::optional<at::Tensor>& depth, bool divided) {
  if (depth) {
    // A depth known only to the device may be 0; then there is no loss to balance.
    const auto used = depth->clamp_min(1);
    const auto gain =
        ratio == 1 ? used : at::pow(at::Scalar(ratio), used).neg().add(1).div(1 - ratio);
    return ops::straight_through(x.mul(divided ? gain.reciprocal() : gain), x.detach());
  }
  double gain = 0;
  for (int64_t n = 0; n < levels; ++n) gain += std::pow(ratio, n);
  if (gain == 0) return x;
  return with_gradient_times(x, divided ? 1 / gain : gain);
}

}  // namespace

StackGradient stack_gradient(bool training, bool estimates_levels, double handed_on,
                             const EstimateOptions& estimate, bool vqp_compat) {
  const auto& name = estimate.estimator();
  const bool reaches_inputs = name != "none" && name != "gumbel";
  return {training, estimates_levels, handed_on, estimate,
          estimates_levels && reaches_inputs && !vqp_compat};
}

LevelSums walk_levels(
    const at::Tensor& inputs, int64_t levels, const StackGradient& gradient, bool sums_outputs,
    const std::function<WalkedLevel(int64_t, const at::Tensor&, const LevelSums&)>& choose) {
  auto residual = inputs;
  // Contiguous, whatever the strides of the inputs: users call view() on the output.
  LevelSums sums{at::zeros_like(inputs, {}, at::MemoryFormat::Contiguous), {}};
  if (sums_outputs) sums.outputs = at::zeros_like(inputs);
  for (int64_t index = 0; index < levels; ++index) {
    const auto [codes, output] = choose(index, residual, sums);
    // Nothing else refers to the sum, so it is updated in place and stays in cache. Under vmap an
    // ensemble has codes of each member, which do not fit into the sum of an input that all share.
    const bool in_place = detail::is_readable(codes) && !codes.requires_grad();
    sums.codes = in_place ? sums.codes.add_(codes) : sums.codes.add(codes);
    if (sums_outputs) sums.outputs = sums.outputs.add(output);
    residual = residual.sub(handed_to_next(output, gradient));
  }
  return sums;
}

WalkedLevel passed_by_padding(const WalkedLevel& level, const at::Tensor& residual,
                              const at::Tensor& mask, bool zeros) {
  const auto real = mask.unsqueeze(-1);
  const auto filled = [&](const at::Tensor& values, const at::Tensor& padding) {
    return zeros ? values.masked_fill(real.logical_not(), 0) : at::where(real, values, padding);
  };
  return {filled(level.codes, residual.detach()), filled(level.output, residual)};
}

at::Tensor balanced(const at::Tensor& inputs, int64_t levels, double ratio,
                    const std::optional<at::Tensor>& depth) {
  return with_gain(inputs, levels, ratio, depth, true);
}

at::Tensor undivided(const at::Tensor& inputs, int64_t levels, double ratio,
                     const std::optional<at::Tensor>& depth) {
  return with_gain(inputs, levels, ratio, depth, false);
}

at::Tensor weighted(const at::Tensor& inputs, int64_t used, int64_t levels,
                    const std::optional<at::Tensor>& depth) {
  if (!depth) {
    return with_gradient_times(inputs, static_cast<double>(used) / static_cast<double>(levels));
  }
  return ops::straight_through(inputs.mul(depth->div(levels)), inputs.detach());
}

at::Tensor compared_inputs(const at::Tensor& inputs, const StackGradient& gradient,
                           const LevelsInUse& used) {
  const bool summed = gradient.estimates_levels && !gradient.averages;
  const bool balances = gradient.averages || !used.scores_targets;
  if (!gradient.training || summed || !balances) return inputs;
  return balanced(inputs, used.levels, 1 - gradient.handed_on, used.depth);
}

at::Tensor scored_inputs(const at::Tensor& compared, const StackGradient& gradient,
                         const LevelsInUse& used) {
  if (!gradient.training || !gradient.averages || !used.scores_targets) return compared;
  return undivided(compared, used.levels, 1 - gradient.handed_on, used.depth);
}

at::Tensor stack_output(const at::Tensor& inputs, const LevelSums& sums, const at::Tensor& rng,
                        const distributed::Ranks& ranks, const StackGradient& gradient) {
  if (gradient.estimates_levels) return sums.outputs;
  const bool draws = gradient.estimate.estimator() == "directional_reparam";
  return estimate(inputs, sums.codes, draws ? distributed::noise_rng(rng, ranks) : rng,
                  gradient.estimate);
}

at::Tensor level_rng(const at::Tensor& rng, int64_t level, bool shared) {
  return level == 0 || !shared ? rng : at::stack({rng[0].add(level), rng[1]});
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def(
      "balanced_inputs(Tensor inputs, int levels, *, float ratio=1., Tensor? depth=None) -> Tensor",
      TORCH_FN(balanced));
  m.def(
      "undivided_inputs(Tensor inputs, int levels, *, float ratio=1., Tensor? depth=None) "
      "-> Tensor",
      TORCH_FN(undivided));
  m.def("weighted_inputs(Tensor inputs, int used, int levels, *, Tensor? depth=None) -> Tensor",
        TORCH_FN(weighted));
  m.def("level_rng(Tensor rng, int level, bool shared) -> Tensor", TORCH_FN(level_rng));
}
