#include <torchvq/modules/refine.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "functional/refine_heads.h"
#include "modules/groups.h"
#include "modules/ranks.h"
#include "modules/residual_beam.h"
#include "modules/residual_engine.h"
#include "modules/residual_levels.h"

namespace torchvq {
namespace {

using functional::RefineCodebooksOptions;
using functional::RefinedHeads;
using OptionalMask = std::optional<at::Tensor>;

/// Rejects stacks whose codes are transformed before they are summed, or are not free to move.
void check_refinable(ResidualVQImpl& rvq) {
  const auto refuse = [](bool present, const char* name) {
    TORCH_CHECK_VALUE(!present, "refine: expected module to have no ", name, ", but got some");
  };
  const auto& options = rvq.options.vq();
  refuse(options.use_cosine_sim(), "cosine codebooks");
  refuse(options.affine_param(), "affine map of the codes");
  refuse(!options.vq_bridge().is_empty(), "bridge behind the codes");
  refuse(rvq.options.implicit_neural_codebook(), "implicit neural codebooks");
  for (const auto& codebook : detail::codebooks_of(rvq)) {
    refuse(!codebook->initialised(), "codes that are not set");
  }
}

detail::Ranks refining_ranks(ResidualVQImpl& rvq) {
  detail::Ranks ranks;
  ranks.group_name = detail::group_of(*rvq.levels[0]);
  ranks.label = "refine of ResidualVQ(dim=" + std::to_string(rvq.options.dim()) + ")";
  return ranks;
}

RefinedHeads refined(ResidualVQImpl& rvq, const at::Tensor& tokens, const OptionalMask& given,
                     RefineCodebooksOptions options) {
  const auto layout = detail::layout_of(rvq);
  const auto mask = layout.token_mask(tokens, given, std::nullopt);
  const auto ranks = refining_ranks(rvq);
  const auto inputs = layout.split_heads(detail::enter_stack(tokens, mask, layout, rvq.project_in));
  if (!ranks.alone()) {
    // The refinement compares its options itself.
    detail::handshake(detail::codebooks_of(rvq), ranks,
                      "refine, " + detail::tokens_text(inputs.scalar_type()));
  }
  std::vector<at::Tensor> codebooks;
  for (const auto& level : rvq.levels) codebooks.push_back(level->codebook_state->embed);
  options.label("refine").weights(detail::beam_weights_of(rvq, rvq.num_quantizers()));
  return functional::refine_heads(inputs, codebooks, layout.split_mask(mask), options,
                                  ranks.group_name);
}

Refinement summary(const std::vector<RefinedHeads>& found) {
  double before = 0, after = 0, features = 0, refits = 0, heads = 0;
  for (const auto& refined : found) {
    const auto dim = static_cast<double>(refined.codebooks[0].size(-1));
    for (const auto& head : refined.heads) {
      before += head.error_before;
      after += head.error_after;
      features += static_cast<double>(head.vectors) * dim;
      refits += static_cast<double>(head.iterations);
      ++heads;
    }
  }
  // Rounds halves to even, as Python does.
  return {before / features, after / features,
          static_cast<int64_t>(std::nearbyint(refits / heads))};
}

Refinement refine_stacks(std::vector<ResidualVQ> stacks, const std::vector<at::Tensor>& parts,
                         const OptionalMask& mask, const RefineCodebooksOptions& options) {
  const at::NoGradGuard no_grad;
  for (auto& stack : stacks) check_refinable(*stack);
  std::vector<RefinedHeads> found;
  for (size_t i = 0; i < stacks.size(); ++i) {
    found.push_back(refined(*stacks[i], parts[i], mask, options));
  }
  // Only after all groups succeeded, so that an error in the last group leaves the first unchanged.
  for (size_t i = 0; i < stacks.size(); ++i) {
    auto codebooks = detail::codebooks_of(*stacks[i]);
    for (size_t q = 0; q < codebooks.size(); ++q) codebooks[q]->move_codes(found[i].codebooks[q]);
  }
  return summary(found);
}

}  // namespace

Refinement refine(const ResidualVQ& module, const at::Tensor& tokens,
                  const std::optional<at::Tensor>& mask, const RefineCodebooksOptions& options) {
  detail::layout_of(*module).check_input(tokens);
  return refine_stacks({module}, {tokens}, mask, options);
}

Refinement refine(const GroupedResidualVQ& module, const at::Tensor& tokens,
                  const std::optional<at::Tensor>& mask, const RefineCodebooksOptions& options) {
  const auto layout = detail::layout_of(*module);
  layout.check_input(tokens);
  const auto parts = tokens.chunk(module->options.groups(), detail::feature_axis(layout));
  return refine_stacks(module->rvqs, parts, mask, options);
}

}  // namespace torchvq
