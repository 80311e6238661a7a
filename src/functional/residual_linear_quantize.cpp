#include <torchvq/functional/residual_linear_quantize.h>

#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <torchvq/functional/layout.h>
#include <torchvq/functional/linear_quantize.h>
#include <torchvq/functional/losses.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "functional/linear_levels_node.h"
#include "functional/operator_options.h"
#include "functional/residual_walk.h"

namespace torchvq::functional {
namespace {

constexpr auto kLinearLevels = "residual_linear_quantize";

void check_linear_levels(const at::Tensor& tokens, const std::vector<LinearLevel>& levels,
                         const std::optional<at::Tensor>& mask) {
  detail::check_rank(kLinearLevels, "tokens", tokens, 3, "(B, N, D)");
  detail::check_floating(kLinearLevels, "tokens", tokens);
  TORCH_CHECK_VALUE(!levels.empty(), kLinearLevels,
                    ": expected levels to be at least one, but got none");
  for (const auto& level : levels) {
    detail::check_dtype(kLinearLevels, "frozen", level.frozen, detail::compute_dtype(tokens));
  }
  if (!mask) return;
  detail::check_dtype(kLinearLevels, "mask", *mask, at::kBool);
  TORCH_CHECK_VALUE(mask->sym_sizes() == tokens.sym_sizes().slice(0, 2), kLinearLevels,
                    ": expected mask to have one value per token, but got shape ",
                    mask->sym_sizes(), " for tokens of shape ", tokens.sym_sizes());
}

/// Levels hand on no gradient.
ResidualLinearStep quantize_levels_in_turn(const at::Tensor& rows,
                                           const std::vector<LinearLevel>& levels,
                                           const std::optional<at::Tensor>& mask,
                                           const std::string& estimator) {
  ResidualLinearStep step;
  std::vector<at::Tensor> indices, losses;
  const auto choose = [&](int64_t index, const at::Tensor& residual,
                          const LevelSums& /*before*/) -> WalkedLevel {
    const auto& level = levels[static_cast<size_t>(index)];
    // The alias is a node at which the gradients of this level add up, before those of later levels
    // join at the residual: the order decides the last bits.
    const auto seen = at::alias(residual);
    auto own = linear_quantize(seen, level.frozen, level.weight, level.bias, {}, estimator);
    losses.push_back(
        paired_loss(own.inputs, own.codes, mask, level.to_inputs, level.to_codes, true));
    indices.push_back(std::move(own.indices));
    step.codes.push_back(own.codes.detach());
    const auto& codes = estimator == "none" ? step.codes.back() : own.quantized;
    return {codes, codes};
  };
  step.total = walk_levels(rows, static_cast<int64_t>(levels.size()), StackGradient(),
                           /*sums_outputs=*/false, choose)
                   .codes;
  step.indices = at::stack(indices, -1);
  step.losses = at::stack(losses);
  return step;
}

}  // namespace

ResidualLinearStep residual_linear_quantize(const at::Tensor& tokens,
                                            const std::vector<LinearLevel>& levels,
                                            const std::optional<at::Tensor>& mask,
                                            const std::string& estimator) {
  check_linear_levels(tokens, levels, mask);
  const auto rows = split_heads(tokens.to(detail::compute_dtype(tokens)), 1, /*separate=*/true);
  std::optional<at::Tensor> real;
  if (mask) real = mask->reshape_symint({1, rows.sym_size(1)});
  auto step = one_node_quantizes(rows, levels, estimator)
                  ? quantize_by_one_node(rows, levels, real, estimator)
                  : quantize_levels_in_turn(rows, levels, real, estimator);
  const c10::SymInt count(static_cast<int64_t>(levels.size()));
  // Nothing else holds these tensors. Users write to the outputs, which autograd refuses for views
  // that were made without a gradient.
  step.indices =
      at::_unsafe_view_symint(step.indices, {tokens.sym_size(0), tokens.sym_size(1), count});
  step.total = at::_unsafe_view_symint(step.total, tokens.sym_sizes());
  for (auto& codes : step.codes) codes = codes.view_symint(tokens.sym_sizes());
  return step;
}

namespace {

using LinearStepTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>>;

LinearStepTensors residual_linear_quantize_op(const at::Tensor& tokens, at::TensorList frozen,
                                              at::TensorList weights, at::TensorList biases,
                                              const std::optional<at::Tensor>& mask,
                                              std::string_view estimator,
                                              at::ArrayRef<double> to_inputs,
                                              at::ArrayRef<double> to_codes) {
  const auto count = frozen.size();
  check_one_per_level(kLinearLevels, "weights", weights.size(), count);
  check_one_per_level(kLinearLevels, "biases", biases.size(), count, /*or_none=*/true);
  check_one_per_level(kLinearLevels, "to_inputs", to_inputs.size(), count);
  check_one_per_level(kLinearLevels, "to_codes", to_codes.size(), count);
  TORCH_CHECK_VALUE(estimator != "directional_reparam", kLinearLevels,
                    ": expected estimator to be one that draws nothing, but got ", estimator);
  std::vector<LinearLevel> levels;
  for (size_t index = 0; index < count; ++index) {
    levels.push_back(
        {frozen[index], weights[index], std::nullopt, to_inputs[index], to_codes[index]});
    if (!biases.empty()) levels.back().bias = biases[index];
  }
  auto step = residual_linear_quantize(tokens, levels, mask, std::string(estimator));
  return {step.total, step.indices, step.losses, std::move(step.codes)};
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_linear_quantize(Tensor tokens, Tensor[] frozen, Tensor[] weights, "
      "Tensor[] biases, *, Tensor? mask=None, str estimator='rotation_trick', float[] to_inputs, "
      "float[] to_codes) -> (Tensor total, Tensor indices, Tensor losses, Tensor[] codes)",
      torchvq::functional::residual_linear_quantize_op);
}
