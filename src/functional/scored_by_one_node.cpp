#include "functional/scored_by_one_node.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "detail/once_differentiable.h"
#include "detail/readable.h"
#include "functional/lookup_free_rows.h"
#include "ops/sign_step.h"

namespace torchvq::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Tensors that a level saves for backward: latents, codes and both slopes.
constexpr size_t kSavedPerLevel = 4;
constexpr size_t kWeightsPerLevel = 3;

bool only_scores(const LookupFreeLevel& level) {
  const auto& options = level.options;
  return steps_at_once(options) && !options.estimates() && options.ranks().group_name.empty() &&
         !level.arguments.rotation && !options.radius() && !options.soft_clamp();
}

/// Losses (Q,), and what backward needs: the tensors of each level, the mask, and three weights of
/// each level.
struct Scored {
  at::Tensor losses;
  variable_list tensors;
  std::vector<double> weights;
};

/// The losses of all levels as functions of the rows.
struct LossesOfLevels : torch::autograd::Function<LossesOfLevels> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const Scored& scored) {
    auto saved = scored.tensors;
    saved.push_back(rows);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["weights"] = scored.weights;
    ctx->set_materialize_grads(false);
    return scored.losses;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor none;
    if (!grads[0].defined()) return {none, none};
    const auto saved = ctx->get_saved_variables();
    const auto weights = ctx->saved_data["weights"].toDoubleVector();
    const auto levels = static_cast<int64_t>(weights.size() / kWeightsPerLevel);
    at::Tensor sum;
    // From the last level to the first, the order in which the graph of single levels adds up.
    for (int64_t level = levels - 1; level >= 0; --level) {
      const auto own = gradient_of(level, grads[0].select(0, level), saved, weights);
      sum = sum.defined() ? sum + own : own;
    }
    return {sum, none};
  }

 private:
  static at::Tensor gradient_of(int64_t level, const at::Tensor& grad, const variable_list& saved,
                                const std::vector<double>& numbers) {
    const auto* own = &saved[static_cast<size_t>(level) * kSavedPerLevel];
    const auto* weight = &numbers[static_cast<size_t>(level) * kWeightsPerLevel];
    const auto &rows = saved[saved.size() - 1], &mask = saved[saved.size() - 2];
    const ops::SignStepWeights weights{weight[0], weight[1], weight[2]};
    detail::SignStepSaved step{own[0], own[1], own[2], own[3],
                               mask.defined() ? std::optional(mask) : std::nullopt};
    if (weights.entropy != 0) detail::check_once_differentiable("sign_step");
    const detail::SignStepGradients grads{
        .codes = {}, .loss = grad, .per_sample = {}, .batch = {}, .commitment = {}};
    if (!at::GradMode::is_enabled()) return detail::call_sign_step_backward(grads, step, weights);
    // The latents as a function of the rows, for a second derivative.
    step.latents = step.latents.detach() + (rows - rows.detach());
    return detail::sign_step_backward_any(grads, step, weights);
  }
};

}  // namespace

bool one_node_scores(const at::Tensor& rows, const std::vector<LookupFreeLevel>& levels) {
  return detail::may_shorten_graph(rows) && std::all_of(levels.begin(), levels.end(), only_scores);
}

ResidualLookupFreeStep score_by_one_node(const at::Tensor& rows,
                                         const std::vector<LookupFreeLevel>& levels) {
  const bool wanted = detail::needs_gradient(rows);
  ResidualLookupFreeStep step;
  Scored scored;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::vector<at::Tensor> losses;
    auto residual = rows;
    step.total = at::zeros(rows.sizes(), rows.options());
    for (const auto& level : levels) {
      auto& signs = step.signs.emplace_back(masks_of(level.arguments, level.options, residual));
      const auto how = sign_step_options(level.options);
      auto [codes, indices, loss, per_sample, batch, commitment, slope_per_sample, slope_batch] =
          detail::call_sign_step(residual, how, signs.mask, signs.entropy_mask, {}, wanted);
      const auto& weights = how.weights;
      scored.tensors.insert(scored.tensors.end(), {residual, codes, slope_per_sample, slope_batch});
      scored.weights.insert(scored.weights.end(),
                            {weights.entropy, weights.diversity_gamma, weights.commitment});
      losses.push_back(std::move(loss));
      step.total.add_(codes);
      signs.latents = residual;
      residual = residual - codes;
      signs.codes = codes;
      signs.indices = std::move(indices);
      step.codes.push_back(std::move(codes));
    }
    scored.losses = at::stack(losses);
  }
  scored.tensors.push_back(step.signs[0].mask.value_or(at::Tensor()));
  step.losses = wanted ? LossesOfLevels::apply(rows, scored) : scored.losses;
  return step;
}

}  // namespace torchvq::functional
