#include "functional/linear_levels_node.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <torchvq/ops/linear_nearest_code.h>
#include <torchvq/ops/paired_commitment_loss.h>
#include <torchvq/ops/rotation_trick.h>

#include "detail/once_differentiable.h"
#include "detail/readable.h"
#include "functional/estimate.h"
#include "ops/linear_nearest_code.h"
#include "ops/paired_commitment_loss.h"

namespace torchvq::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kLevelEstimator = "estimator", kToInputs = "to_inputs", kToCodes = "to_codes";
/// Tensors that a level saves for backward: residual, codes, indices and frozen codes.
constexpr size_t kSavedPerLevel = 4;
/// Outputs of the node before the codes of the levels.
enum Output : size_t { kTotal, kLosses, kCodes };

/// What the levels chose, without a graph.
struct Chosen {
  at::Tensor total;       // (1, T, D)
  at::Tensor losses;      // (Q,)
  variable_list codes;    // (1, T, D) of each level
  variable_list indices;  // (1, T) of each level
  variable_list saved;    // for backward
  std::vector<double> to_inputs, to_codes;
};

/// The tensors of a level and the upstream gradients that reach it.
struct LevelBackward {
  at::Tensor residual, codes, indices, frozen;
  std::optional<at::Tensor> mask;
  at::Tensor of_total, of_loss, of_codes;
  double to_inputs, to_codes;
};

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a + b : a;
}

/// The gradients of a level's residual and codes.
std::pair<at::Tensor, at::Tensor> gradients_of(const LevelBackward& own,
                                               const std::string& estimator) {
  at::Tensor of_residual, of_codes = own.of_codes;
  if (own.of_loss.defined()) {
    auto [residual, codes] = detail::paired_gradients(own.of_loss, own.residual, own.codes,
                                                      own.mask, own.to_inputs, own.to_codes);
    of_residual = std::move(residual);
    of_codes = sum_of(codes, of_codes);
  }
  if (own.of_total.defined()) {
    auto estimated = own.of_total;
    if (estimator == "rotation_trick") {
      detail::check_once_differentiable("rotation_trick");
      estimated = ops::rotation_trick_backward(own.of_total, own.residual, own.codes);
    }
    of_residual = sum_of(of_residual, estimated);
  }
  return {of_residual, of_codes};
}

/// Total, losses and codes of all levels as functions of the rows, the weights and the biases, the last
/// level's first.
struct LinearLevels : torch::autograd::Function<LinearLevels> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& rows,
                               at::TensorList /*weights*/, at::TensorList biases,
                               const Chosen& chosen, const std::string& estimator) {
    auto saved = chosen.saved;
    saved.push_back(rows);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data[kLevelEstimator] = estimator;
    ctx->saved_data[kToInputs] = chosen.to_inputs;
    ctx->saved_data[kToCodes] = chosen.to_codes;
    ctx->saved_data["biases"] = !biases.empty();
    ctx->set_materialize_grads(false);
    if (estimator == "none") ctx->mark_non_differentiable({chosen.total});
    variable_list outputs{chosen.total, chosen.losses};
    outputs.insert(outputs.end(), chosen.codes.begin(), chosen.codes.end());
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto estimator = ctx->saved_data[kLevelEstimator].toStringRef();
    const size_t levels = grads.size() - kCodes;
    const bool biased = ctx->saved_data["biases"].toBool();
    variable_list result(1 + levels * (biased ? 2 : 1) + 2);  // chosen and estimator have none
    // From the last level to the first, the order in which the graph of single levels adds up.
    for (size_t n = 0; n < levels; ++n) {
      const auto own = backward_of(ctx, levels - 1 - n, grads, saved);
      const auto [of_residual, of_codes] = gradients_of(own, estimator);
      result[0] = sum_of(result[0], of_residual);
      const size_t at = 1 + n, bias_at = at + levels;
      const bool wants_bias = biased && ctx->needs_input_grad(bias_at);
      if (!of_codes.defined() || !(ctx->needs_input_grad(at) || wants_bias)) continue;
      const auto absent = own.codes.detach().select(-1, 0).isnan();
      auto [weight, bias] = detail::linear_map_gradients(of_codes, absent, own.indices, own.frozen);
      result[at] = std::move(weight);
      if (wants_bias) result[bias_at] = std::move(bias);
    }
    return result;
  }

 private:
  static LevelBackward backward_of(AutogradContext* ctx, size_t level, const variable_list& grads,
                                   const variable_list& saved) {
    const auto* own = &saved[level * kSavedPerLevel];
    const auto &rows = saved[saved.size() - 1], &mask = saved[saved.size() - 2];
    LevelBackward result{own[0],
                         own[1],
                         own[2],
                         own[3],
                         {},
                         grads[kTotal],
                         {},
                         grads[kCodes + level],
                         ctx->saved_data[kToInputs].toDoubleVector()[level],
                         ctx->saved_data[kToCodes].toDoubleVector()[level]};
    if (mask.defined()) result.mask = mask;
    if (grads[kLosses].defined()) {
      result.of_loss = grads[kLosses].select(0, static_cast<int64_t>(level));
    }
    // The residual as a function of the rows, for a second derivative.
    if (at::GradMode::is_enabled()) {
      result.residual = result.residual.detach() + (rows - rows.detach());
    }
    return result;
  }
};

Chosen choose_levels(const at::Tensor& rows, const std::vector<LinearLevel>& levels,
                     const std::optional<at::Tensor>& mask) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Chosen chosen;
  variable_list losses;
  chosen.total = at::zeros(rows.sizes(), rows.options());
  auto residual = rows;
  for (const auto& level : levels) {
    auto [codes, indices] =
        ops::linear_nearest_code(residual, level.frozen, level.weight, level.bias);
    losses.push_back(
        ops::paired_commitment_loss(residual, codes, mask, level.to_inputs, level.to_codes));
    chosen.total.add_(codes);
    chosen.saved.insert(chosen.saved.end(), {residual, codes, indices, level.frozen});
    chosen.to_inputs.push_back(level.to_inputs);
    chosen.to_codes.push_back(level.to_codes);
    residual = residual - codes;
    chosen.codes.push_back(std::move(codes));
    chosen.indices.push_back(std::move(indices));
  }
  chosen.losses = at::stack(losses);
  chosen.saved.push_back(mask.value_or(at::Tensor()));
  return chosen;
}

bool is_learnt(const LinearLevel& level) {
  return detail::needs_gradient(level.weight) ||
         (level.bias && detail::needs_gradient(*level.bias));
}

/// Whether all levels have a bias, or none has.
bool agree_on_bias(const std::vector<LinearLevel>& levels) {
  return std::all_of(levels.begin(), levels.end(), [&](const LinearLevel& level) {
    return level.bias.has_value() == levels[0].bias.has_value();
  });
}

bool are_readable(const LinearLevel& level) {
  return detail::is_readable(level.weight) && detail::is_readable(level.frozen) &&
         (!level.bias || detail::is_readable(*level.bias));
}

}  // namespace

bool one_node_quantizes(const at::Tensor& rows, const std::vector<LinearLevel>& levels,
                        const std::string& estimator) {
  if (!detail::may_shorten_graph(rows) || !agree_on_bias(levels)) return false;
  if (estimator != "none" && !is_plain_estimator(estimator, /*sync_update_v=*/0)) return false;
  return std::all_of(levels.begin(), levels.end(), are_readable) &&
         (detail::needs_gradient(rows) || std::any_of(levels.begin(), levels.end(), is_learnt));
}

ResidualLinearStep quantize_by_one_node(const at::Tensor& rows,
                                        const std::vector<LinearLevel>& levels,
                                        const std::optional<at::Tensor>& mask,
                                        const std::string& estimator) {
  const auto chosen = choose_levels(rows, levels, mask);
  variable_list weights, biases;
  // Levels may share a transform, whose gradients the graph of single levels adds up in this order.
  for (size_t level = levels.size(); level-- > 0;) {
    weights.push_back(levels[level].weight);
    if (const auto& bias = levels[level].bias) biases.push_back(*bias);
  }
  const auto outputs =
      LinearLevels::apply(rows, at::TensorList(weights), at::TensorList(biases), chosen, estimator);
  ResidualLinearStep step{outputs[kTotal], at::stack(chosen.indices, -1), outputs[kLosses], {}};
  for (size_t level = 0; level < levels.size(); ++level) {
    step.codes.push_back(outputs[kCodes + level].detach());
  }
  return step;
}

}  // namespace torchvq::functional
