#include <torchvq/functional/residual_lookup_free.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/ops/alias.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <torchvq/functional/layout.h>

#include "detail/checks.h"
#include "functional/lookup_free_rows.h"
#include "functional/operator_options.h"
#include "functional/residual_walk.h"
#include "functional/scored_by_one_node.h"

namespace torchvq::functional {
namespace {

constexpr auto kOp = "residual_lookup_free_quantize";

/// The tokens as rows (1, B * N, D), zeros where they are absent.
at::Tensor rows_of(const at::Tensor& tokens, const LookupFreeLevel& level) {
  const auto& mask = level.arguments.mask;
  // The reference quantizes padding as well.
  const bool fills = mask && !level.options.vqp_compat();
  return split_heads(fills ? fill_masked(tokens, *mask) : tokens, 1, /*separate=*/true);
}

/// Levels hand on no gradient.
ResidualLookupFreeStep step_in_turn(const at::Tensor& rows,
                                    const std::vector<LookupFreeLevel>& levels) {
  ResidualLookupFreeStep step;
  std::vector<at::Tensor> losses;
  const auto choose = [&](int64_t index, const at::Tensor& residual,
                          const LevelSums& /*before*/) -> WalkedLevel {
    const auto& [arguments, options] = levels[static_cast<size_t>(index)];
    // A node of its own, at which the gradients of a level add up before those of the next join.
    auto own = quantize_rows(at::alias(residual), arguments, options);
    losses.push_back(std::move(own.losses.loss));
    step.signs.push_back(std::move(own.signs));
    step.codes.push_back(own.quantized);
    return {own.quantized, own.quantized};
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
  detail::check_rank(kOp, "tokens", tokens, 3, "(B, N, D)");
  TORCH_CHECK_VALUE(!levels.empty(), kOp, ": expected levels to be at least one, but got none");
  const auto rows = rows_of(tokens, levels[0]);
  auto step =
      one_node_scores(rows, levels) ? score_by_one_node(rows, levels) : step_in_turn(rows, levels);
  std::vector<at::Tensor> indices;
  for (const auto& signs : step.signs) indices.push_back(signs.indices);
  const c10::SymInt count(static_cast<int64_t>(levels.size()));
  step.indices =
      at::stack(indices, -1).reshape_symint({tokens.sym_size(0), tokens.sym_size(1), count});
  step.total = step.total.reshape_symint(tokens.sym_sizes());
  return step;
}

namespace {

using StackTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>, std::vector<at::Tensor>,
               std::vector<at::Tensor>, std::vector<at::Tensor>>;

void check_one_per_level(const char* name, size_t given, size_t levels) {
  TORCH_CHECK_VALUE(given == 0 || given == levels, kOp, ": expected ", name,
                    " to be empty or one for each of ", levels, " levels, but got ", given);
}

StackTensors residual_lookup_free_quantize_op(
    const at::Tensor& tokens, const std::optional<at::Tensor>& mask, at::TensorList rotations,
    const std::optional<at::Tensor>& rng, at::ArrayRef<double> scales, at::ArrayRef<double> radii,
    at::ArrayRef<double> soft_clamps, double fraction, bool estimates, bool scores,
    double entropy_weight, double diversity_gamma, double commitment_weight,
    std::optional<double> softplus_offset, bool vqp_compat, std::string_view group_name,
    std::string_view label) {
  const auto count = scales.size();
  check_one_per_level("rotations", rotations.size(), count);
  check_one_per_level("radii", radii.size(), count);
  check_one_per_level("soft_clamps", soft_clamps.size(), count);
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
