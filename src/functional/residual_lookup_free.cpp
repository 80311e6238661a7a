#include <torchvq/functional/residual_lookup_free.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <torchvq/functional/layout.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "functional/lookup_free_rows.h"
#include "functional/operator_options.h"
#include "functional/residual_walk.h"
#include "functional/scored_by_one_node.h"

namespace torchvq::functional {
namespace {

constexpr auto kOp = "residual_lookup_free_quantize";

/// Rows (1, B * N, D), zeros where the mask (B, N) is False.
at::Tensor filled(const at::Tensor& rows, const at::Tensor& mask) {
  return fill_masked(rows, mask.reshape_symint({1, rows.sym_size(1)}));
}

/// The tokens as rows (1, B * N, D) in float32 or float64, zeros where they are absent.
at::Tensor rows_of(const at::Tensor& tokens, const LookupFreeLevel& level) {
  const auto rows = split_heads(tokens.to(detail::compute_dtype(tokens)), 1, /*separate=*/true);
  const auto absent = absent_where(level.arguments, level.options);
  return absent ? filled(rows, *absent) : rows;
}

void check_levels(const at::Tensor& tokens, const std::vector<LookupFreeLevel>& levels) {
  detail::check_rank(kOp, "tokens", tokens, 3, "(B, N, D)");
  detail::check_floating(kOp, "tokens", tokens);
  TORCH_CHECK_VALUE(!levels.empty(), kOp, ": expected levels to be at least one, but got none");
  for (const auto& [arguments, options] : levels) {
    TORCH_CHECK_VALUE(options.codebooks() == 1 && !options.channel_first(), kOp,
                      ": expected levels to have one codebook and features last, but got ",
                      options.codebooks(), " codebooks, channel_first ", options.channel_first());
    const auto& mask = arguments.mask;
    TORCH_CHECK_VALUE(!mask || mask->sym_sizes() == tokens.sym_sizes().slice(0, 2), kOp,
                      ": expected mask to have one value per token, but got shape ",
                      mask ? mask->sym_sizes() : tokens.sym_sizes(), " for tokens of shape ",
                      tokens.sym_sizes());
  }
}

/// Levels hand on no gradient.
ResidualLookupFreeStep step_in_turn(const at::Tensor& rows,
                                    const std::vector<LookupFreeLevel>& levels) {
  ResidualLookupFreeStep step;
  std::vector<at::Tensor> losses;
  const auto choose = [&](int64_t index, const at::Tensor& residual,
                          const LevelSums& /*before*/) -> WalkedLevel {
    const auto& [arguments, options] = levels[static_cast<size_t>(index)];
    // The alias is a node at which the gradients of this level add up, before those of later levels
    // join at the residual: the order decides the last bits.
    auto seen = at::alias(residual);
    // A function of the user may compute moments over all tokens, so padding is zero for it.
    const auto absent = absent_where(arguments, options);
    if (arguments.activation && absent) seen = filled(seen, *absent);
    auto own = quantize_rows(seen, arguments, options);
    losses.push_back(std::move(own.losses.loss));
    step.signs.push_back(std::move(own.signs));
    // Under transforms of torch.func autocast sees the operators inside.
    step.codes.push_back(own.quantized.to(rows.scalar_type()));
    return {step.codes.back(), step.codes.back()};
  };
  step.total = walk_levels(rows, static_cast<int64_t>(levels.size()), StackGradient(),
                           /*sums_outputs=*/false, choose)
                   .codes;
  step.losses = at::stack(losses);
  return step;
}

}  // namespace

ResidualLookupFreeStep residual_lookup_free_quantize(const at::Tensor& tokens,
                                                     const std::vector<LookupFreeLevel>& levels) {
  check_levels(tokens, levels);
  const auto rows = rows_of(tokens, levels[0]);
  auto step =
      one_node_scores(rows, levels) ? score_by_one_node(rows, levels) : step_in_turn(rows, levels);
  std::vector<at::Tensor> indices;
  for (const auto& signs : step.signs) indices.push_back(signs.indices);
  const c10::SymInt count(static_cast<int64_t>(levels.size()));
  // Nothing else holds these tensors. Users write to the outputs, which autograd refuses for views
  // that were made without a gradient.
  step.indices = at::_unsafe_view_symint(at::stack(indices, -1),
                                         {tokens.sym_size(0), tokens.sym_size(1), count});
  step.total = at::_unsafe_view_symint(step.total, tokens.sym_sizes());
  return step;
}

namespace {

using StackTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>, std::vector<at::Tensor>,
               std::vector<at::Tensor>, std::vector<at::Tensor>>;

StackTensors residual_lookup_free_quantize_op(
    const at::Tensor& tokens, const std::optional<at::Tensor>& mask, at::TensorList rotations,
    const std::optional<at::Tensor>& rng, at::ArrayRef<double> scales, at::ArrayRef<double> radii,
    at::ArrayRef<double> soft_clamps, double fraction, bool estimates, bool scores,
    double entropy_weight, double diversity_gamma, double commitment_weight,
    std::optional<double> softplus_offset, bool vqp_compat, std::string_view group_name,
    std::string_view label) {
  const auto count = scales.size();
  check_one_per_level(kOp, "rotations", rotations.size(), count, /*or_none=*/true);
  check_one_per_level(kOp, "radii", radii.size(), count, /*or_none=*/true);
  check_one_per_level(kOp, "soft_clamps", soft_clamps.size(), count, /*or_none=*/true);
  const auto shared =
      LookupFreeOptions()
          .fraction(fraction)
          .estimates(estimates)
          .scores(scores)
          .weights({entropy_weight, diversity_gamma, commitment_weight, softplus_offset})
          .vqp_compat(vqp_compat)
          .ranks(ranks_named(group_name, label));
  std::vector<LookupFreeLevel> levels(count, {{mask, {}, rng, {}}, shared});
  for (size_t index = 0; index < count; ++index) {
    auto& [arguments, options] = levels[index];
    options.scale(scales[index]);
    if (!rotations.empty()) arguments.rotation = rotations[index];
    if (!radii.empty()) options.radius(radii[index]);
    if (!soft_clamps.empty()) options.soft_clamp(soft_clamps[index]);
  }
  auto step = residual_lookup_free_quantize(tokens, levels);
  std::vector<at::Tensor> latents, codes, counted;
  for (auto& signs : step.signs) {
    latents.push_back(std::move(signs.latents));
    codes.push_back(std::move(signs.codes));
    if (signs.entropy_mask) counted.push_back(std::move(*signs.entropy_mask));
  }
  return {step.total,         step.indices,     step.losses,       std::move(step.codes),
          std::move(latents), std::move(codes), std::move(counted)};
}

}  // namespace
}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_lookup_free_quantize(Tensor tokens, *, Tensor? mask=None, Tensor[] rotations, "
      "Tensor? rng=None, float[] scales, float[] radii, float[] soft_clamps, "
      "float fraction=1., bool estimates=False, bool scores=False, float entropy_weight=0.1, "
      "float diversity_gamma=1., float commitment_weight=0., float? softplus_offset=None, "
      "bool vqp_compat=False, str group_name='', str label='ResidualLFQ') "
      "-> (Tensor total, Tensor indices, Tensor losses, Tensor[] codes, Tensor[] latents, "
      "Tensor[] signs, Tensor[] counted)",
      torchvq::functional::residual_lookup_free_quantize_op);
}
