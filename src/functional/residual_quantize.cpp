#include <torchvq/functional/residual_quantize.h>

#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include <torchvq/distributed/noise_rng.h>
#include <torchvq/functional/estimate.h>
#include <torchvq/functional/losses.h>
#include <torchvq/functional/vector_quantize.h>
#include <torchvq/ops/residual_beam_search.h>
#include <torchvq/ops/residual_commit.h>
#include <torchvq/ops/residual_encode.h>
#include <torchvq/ops/sampled_beam_search.h>

#include "detail/joined.h"
#include "functional/estimate.h"
#include "functional/replaced_codes.h"
#include "functional/residual_learning.h"
#include "functional/residual_walk.h"
#include "functional/step_checks.h"
#include "ops/unit_vectors.h"

namespace torchvq::functional {
namespace {

using Tensors = std::vector<at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

/// The search result of one level.
struct Level {
  SearchedTokens searched;
  at::Tensor tokens;    ///< (B, N, heads * D), its input; set only for the reference's losses
  OptionalTensor used;  ///< (), bool, if only the device knows whether the level is in use
  OptionalTensor mask;  ///< (B, N)
};

struct SearchedStack {
  at::Tensor output;  ///< (H, T, D)
  std::vector<Level> levels;
  Tensors codes;  ///< (H, T, D), zeros if a level is not in use; if the levels are walked in turn
  // If all levels are scored at once, otherwise undefined:
  at::Tensor indices;  ///< (H, T, q), -1 where masked
  at::Tensor losses;   ///< (q,)
};

at::Tensor only_if(const OptionalTensor& used, const at::Tensor& value, double otherwise = 0) {
  return used ? at::where(*used, value, otherwise) : value;
}

class Stack {
 public:
  Stack(const at::Tensor& tokens, const ResidualQuantizeArguments& arguments,
        const ResidualQuantizeOptions& options)
      : tokens_(tokens),
        arguments_(arguments),
        options_(options),
        ranks_(options.learning().ranks()),
        gradient_(stack_gradient(options.losses().training(), options.estimates_levels(),
                                 options.handed_on(),
                                 EstimateOptions()
                                     .estimator(options.estimator())
                                     .variance(options.search().variance())
                                     .sync_update_v(options.search().sync_update_v()),
                                 options.losses().vqp_compat().has_value())),
        inputs_(split_heads(tokens, options.layout().heads(), options.layout().separate())) {}

  SearchedStack walk() const;
  /// Computes the losses of all levels and updates the codebooks.
  at::Tensor learn(const SearchedStack& walk, Tensors& totals) const;
  at::Tensor indices(const SearchedStack& walk) const;
  at::Tensor of_all_levels(const at::Tensor& losses) const;

 private:
  size_t count() const { return arguments_.codebooks.size(); }
  LevelsInUse in_use() const {
    return {static_cast<int64_t>(count()), !arguments_.targets.empty(), arguments_.depth};
  }
  bool shared() const { return arguments_.states.size() < arguments_.step_counts.size(); }
  const CodebookState& state(size_t level) const { return arguments_.states[shared() ? 0 : level]; }
  /// Whether levels have gradients of their own; otherwise one estimator serves the whole stack.
  bool levels_have_gradients() const { return gradient_.training && gradient_.needs_levels(); }

  at::Tensor merged(const at::Tensor& values) const;
  OptionalTensor level_mask(size_t level) const;
  at::Tensor drawing_rng(size_t level) const;
  at::Tensor beam_paths(const at::Tensor& inputs, at::TensorList codebooks,
                        const ops::ResidualBeamSearchOptions& options) const;
  at::Tensor chosen_at_once() const;
  bool scores_at_once(const at::Tensor& chosen) const;
  SearchedStack walk_at_once(const at::Tensor& chosen) const;
  SearchedStack walk_in_turn(const at::Tensor& chosen) const;
  std::pair<Level, WalkedLevel> search_level(size_t index, const at::Tensor& residual,
                                             const QuantizeOptions& search) const;

  QuantizerLossOptions loss_options(const Level& level) const;
  std::vector<QuantizerLosses> score(const SearchedStack& walk, Tensors& totals) const;
  Tensors update(const std::vector<Level>& levels) const;
  void finish(const std::vector<Level>& levels, const Tensors& counts) const;

  const at::Tensor& tokens_;
  const ResidualQuantizeArguments& arguments_;
  const ResidualQuantizeOptions& options_;
  const distributed::Ranks& ranks_;
  const StackGradient gradient_;
  const at::Tensor inputs_;  ///< (H, T, D)
};

// Search ------------------------------------------------------------------------------------------

/// Converts (H, T, D) to (B, N, heads * D).
at::Tensor Stack::merged(const at::Tensor& values) const {
  const auto& layout = options_.layout();
  return merge_heads(values, tokens_.sym_size(0), tokens_.sym_size(1), layout.heads(),
                     layout.separate())
      .flatten(2);
}

OptionalTensor Stack::level_mask(size_t level) const {
  if (!arguments_.depth) return arguments_.mask;
  const auto used = arguments_.depth->gt(static_cast<int64_t>(level));
  const auto all = used.expand_symint({tokens_.sym_size(0), tokens_.sym_size(1)});
  return arguments_.mask ? arguments_.mask->logical_and(all) : all;
}

/// The generator of a level: levels that share a codebook draw different numbers from it, and so do
/// ranks, for their own tokens.
at::Tensor Stack::drawing_rng(size_t level) const {
  return distributed::noise_rng(level_rng(state(level).rng, static_cast<int64_t>(level), shared()),
                                ranks_);
}

/// The indices (H, T, q) of all levels in use.
at::Tensor Stack::beam_paths(const at::Tensor& inputs, at::TensorList codebooks,
                             const ops::ResidualBeamSearchOptions& options) const {
  const double temperature = options_.search().temperature().value_or(0);
  if (temperature <= 0) {
    return ops::residual_beam_search(inputs, codebooks, options_.beam(), options);
  }
  Tensors rngs;
  for (size_t level = 0; level < count(); ++level) rngs.push_back(drawing_rng(level));
  return ops::sampled_beam_search(inputs, codebooks, rngs, options_.beam(), temperature,
                                  options_.search().metric(), options);
}

/// The codes (H, T, q) of all levels, if residuals do not depend on the
/// estimator; otherwise undefined.
at::Tensor Stack::chosen_at_once() const {
  const at::NoGradGuard no_grad;
  Tensors codebooks;
  for (const auto& codebook : arguments_.codebooks) codebooks.push_back(codebook.detach());
  const auto inputs = inputs_.detach();
  OptionalTensor mask;
  if (arguments_.mask) {
    mask = split_mask(*arguments_.mask, options_.layout().heads(), options_.layout().separate());
  }
  if (options_.beam() > 1) {
    auto beam = ops::ResidualBeamSearchOptions().weights(options_.beam_weights()).mask(mask);
    if (arguments_.depth) beam.depth(arguments_.depth->reshape(1));
    return beam_paths(inputs, codebooks, beam).clamp_min(0);
  }
  if (levels_have_gradients() || options_.search().temperature()) return {};
  // The reference's losses take the codes of padding, too.
  if (options_.losses().vqp_compat()) mask = std::nullopt;
  auto encode = ops::ResidualEncodeOptions().metric(options_.search().metric()).mask(mask);
  const auto indices = ops::residual_encode(inputs, codebooks, encode).indices;
  return mask ? indices.clamp_min(0) : indices;
}

/// Whether the levels have chosen codes and only a commitment loss, and no gradient goes to the
/// codes.
bool Stack::scores_at_once(const at::Tensor& chosen) const {
  const auto& losses = options_.losses();
  const bool plain = losses.training() && losses.commitment_weight() != 0 &&
                     !losses.commitment_use_cross_entropy_loss() && !losses.pulls_codes() &&
                     losses.diversity_weight() == 0 && losses.orthogonal_weight() == 0 &&
                     !losses.vqp_compat();
  const bool reaches_tokens = gradient_.estimate.estimator() != "none";
  return plain && reaches_tokens && chosen.defined() && !levels_have_gradients() &&
         !options_.returns_codes() && arguments_.targets.empty() && !arguments_.depth &&
         options_.search().metric() == "euclidean" &&
         inputs_.scalar_type() == detail::compute_dtype(inputs_);
}

std::pair<Level, WalkedLevel> Stack::search_level(size_t index, const at::Tensor& residual,
                                                  const QuantizeOptions& search) const {
  Level level{.searched = {}, .tokens = {}, .used = {}, .mask = level_mask(index)};
  if (options_.losses().vqp_compat()) level.tokens = merged(residual);
  if (arguments_.depth) level.used = arguments_.depth->gt(static_cast<int64_t>(index));
  const auto& layout = options_.layout();
  OptionalTensor mask;
  if (level.mask) mask = split_mask(*level.mask, layout.heads(), layout.separate());
  const bool draws = search.estimator() != "none" || search.temperature();
  const auto rng = draws ? drawing_rng(index) : state(index).rng;
  const auto found = quantize(residual, arguments_.codebooks[index], rng, mask, search);
  const auto scored = scored_inputs(found.inputs, gradient_, in_use());
  level.searched = {scored, arguments_.codebooks[index], mask, found.codes, found.indices};
  WalkedLevel passed{found.codes, found.quantized};
  if (mask && options_.losses().diversity_of_padding()) {
    passed = passed_by_padding(passed, residual, *mask, layout.zeros_for_masked());
  }
  passed = {only_if(level.used, passed.codes), only_if(level.used, passed.output)};
  return {std::move(level), std::move(passed)};
}

SearchedStack Stack::walk() const {
  const auto chosen = chosen_at_once();
  return scores_at_once(chosen) ? walk_at_once(chosen) : walk_in_turn(chosen);
}

/// Processes levels with chosen codes in one pass over the tokens.
SearchedStack Stack::walk_at_once(const at::Tensor& chosen) const {
  Tensors codebooks;
  for (const auto& codebook : arguments_.codebooks) codebooks.push_back(codebook.detach());
  const auto& mask = arguments_.mask;
  OptionalTensor token_mask;
  SearchedStack walk;
  walk.indices = chosen;
  if (mask) {
    token_mask = split_mask(*mask, options_.layout().heads(), options_.layout().separate());
    walk.indices = chosen.masked_fill(token_mask->logical_not().unsqueeze(-1), -1);
  }
  const auto& estimate = gradient_.estimate;
  const bool plain = is_plain_estimator(estimate.estimator(), estimate.sync_update_v());
  const auto found =
      ops::residual_commit(inputs_, codebooks, chosen, token_mask,
                           plain ? estimate.estimator() : "none", static_cast<double>(count()));
  const auto of_levels = walk.indices.permute({2, 0, 1}).contiguous().unbind(0);
  const auto left = found.residuals.unbind(0);
  for (size_t i = 0; i < count(); ++i) {
    Level level{.searched = {}, .tokens = {}, .used = {}, .mask = mask};
    level.searched = {
        i == 0 ? inputs_.detach() : left[i - 1], codebooks[i], token_mask, {}, of_levels[i]};
    walk.levels.push_back(std::move(level));
  }
  walk.losses =
      weighted_loss({found.losses}, {options_.losses().commitment_weight()}, /*training=*/true);
  walk.output = plain
                    ? found.quantized
                    : stack_output(inputs_, {found.quantized, {}}, state(0).rng, ranks_, gradient_);
  return walk;
}

SearchedStack Stack::walk_in_turn(const at::Tensor& chosen) const {
  const auto of_levels = chosen.defined() ? chosen.unbind(-1) : Tensors();
  auto search = options_.search();
  if (!levels_have_gradients()) search.estimator("none");
  SearchedStack walk;
  const auto choose = [&](int64_t index, const at::Tensor& residual, const LevelSums& /*before*/) {
    const auto i = static_cast<size_t>(index);
    if (!of_levels.empty()) search.chosen(of_levels[i]);
    auto [level, passed] = search_level(i, residual, search);
    walk.levels.push_back(std::move(level));
    walk.codes.push_back(passed.codes);
    return passed;
  };
  const auto compared = compared_inputs(inputs_, gradient_, in_use());
  const auto sums =
      walk_levels(compared, in_use().levels, gradient_, gradient_.estimates_levels, choose);
  walk.output = stack_output(inputs_, sums, state(0).rng, ranks_, gradient_);
  return walk;
}

/// The indices (H, T, Q) of all levels, -1 for those that are not in use.
at::Tensor Stack::indices(const SearchedStack& walk) const {
  const auto every = arguments_.step_counts.size();
  // Backward may need the indices as they are, so callers get their own to write to.
  if (walk.indices.defined() && count() == every) return walk.indices.clone();
  Tensors levels;
  for (const auto& level : walk.levels) levels.push_back(level.searched.indices);
  if (levels.size() < every) levels.resize(every, at::full_like(levels[0], -1));
  return detail::stacked(levels, -1);
}

/// Losses of the levels in use (q,), and 0 for the other levels.
at::Tensor Stack::of_all_levels(const at::Tensor& losses) const {
  const auto unused = static_cast<int64_t>(arguments_.step_counts.size() - count());
  return unused == 0 ? losses : at::cat({losses, losses.detach().new_zeros({unused})});
}

// After the search --------------------------------------------------------------------------------

/// The reference's losses use the tokens before the heads were split, and the caller's mask alone:
/// with a mask they differ from those without one, also if it hides nothing.
QuantizerLossOptions Stack::loss_options(const Level& level) const {
  auto losses = options_.losses();
  if (auto& before = losses.vqp_compat()) {
    before->tokens = level.tokens;
    before->mask = arguments_.mask;
  }
  return losses;
}

std::vector<QuantizerLosses> Stack::score(const SearchedStack& walk, Tensors& totals) const {
  Tensors embeds;
  std::vector<SearchedTokens> searched;
  for (size_t i = 0; i < arguments_.step_counts.size(); ++i) {
    embeds.push_back(state(i).embed.detach());
    if (i < walk.levels.size()) searched.push_back(walk.levels[i].searched);
  }
  if (totals.empty()) {
    const std::vector<QuantizerLossOptions> losses(searched.size(), options_.losses());
    for (auto& own : shared_totals(embeds, searched, losses, ranks_)) {
      if (own) totals.push_back(std::move(*own));
    }
  }
  std::vector<QuantizerLosses> found;
  for (size_t i = 0; i < walk.levels.size(); ++i) {
    const auto& targets = arguments_.targets;
    found.push_back(search_losses(
        searched[i], targets.empty() ? std::nullopt : OptionalTensor(targets[i]),
        totals.empty() ? std::nullopt : OptionalTensor(totals[i]), loss_options(walk.levels[i])));
  }
  return found;
}

/// Updates the averages and codes of all levels, and replaces dead codes. Returns the tokens per
/// code of each level, over all ranks; empty if no level learns.
Tensors Stack::update(const std::vector<Level>& levels) const {
  const bool replaces = options_.learns() && options_.finishes() && options_.learning().replaces();
  const ReplacedCodes replaced(arguments_.states, replaces);
  Tensors counts;
  if (options_.learns()) {
    StackStep step{replaced.states(), {}, shared()};
    for (const auto& level : levels) {
      const auto& searched = level.searched;
      step.tokens.push_back({searched.inputs.detach(), searched.indices, searched.mask});
    }
    counts = learn_stack_(step, options_.learning(), options_.beam());
  }
  if (options_.finishes()) replaced.finish();
  return counts;
}

void Stack::finish(const std::vector<Level>& levels, const Tensors& counts) const {
  if (!options_.finishes()) return;
  std::vector<SearchedTokens> searched;
  for (const auto& level : levels) searched.push_back(level.searched);
  finish_levels_(arguments_.step_counts, searched, arguments_.states, counts,
                 options_.learns() || options_.draws(), ranks_.alone(), arguments_.depth);
}

at::Tensor Stack::learn(const SearchedStack& walk, Tensors& totals) const {
  if (walk.losses.defined()) {
    finish(walk.levels, update(walk.levels));
    return of_all_levels(walk.losses);
  }
  auto found = score(walk, totals);
  const auto counts = update(walk.levels);
  Tensors losses;
  for (size_t i = 0; i < walk.levels.size(); ++i) {
    const auto& level = walk.levels[i];
    const auto orthogonal =
        orthogonal_term(state(i).embed, level.searched.indices, state(i).rng, options_.losses());
    if (orthogonal.defined()) found[i].orthogonal = orthogonal;
    const auto loss = total_loss(found[i], !arguments_.targets.empty(), options_.losses());
    losses.push_back(only_if(level.used, loss));
  }
  finish(walk.levels, counts);
  return of_all_levels(detail::stacked(losses));
}

}  // namespace

namespace {

void check_lists(const ResidualQuantizeArguments& arguments, const Tensors& totals) {
  constexpr auto op = "residual_quantize_";
  const auto& [codebooks, states, step_counts, mask, depth, targets] = arguments;
  TORCH_CHECK_VALUE(!codebooks.empty() && codebooks.size() <= step_counts.size(), op,
                    ": expected codebooks to hold at least 1 and at most ", step_counts.size(),
                    " tensors (those of step_counts), but got ", codebooks.size());
  TORCH_CHECK_VALUE(states.size() == 1 || states.size() == step_counts.size(), op,
                    ": expected state of 1 or of ", step_counts.size(),
                    " codebooks (those of step_counts), but got ", states.size());
  TORCH_CHECK_VALUE(targets.empty() || targets.size() == codebooks.size(), op,
                    ": expected targets to hold ", codebooks.size(),
                    " tensors (those of codebooks), but got ", targets.size());
  TORCH_CHECK_VALUE(totals.empty() || totals.size() >= codebooks.size(), op,
                    ": expected totals to hold ", codebooks.size(),
                    " tensors (those of codebooks), but got ", totals.size());
}

}  // namespace

ResidualQuantizeStep residual_quantize_(const at::Tensor& tokens,
                                        const ResidualQuantizeArguments& arguments,
                                        const ResidualQuantizeOptions& options,
                                        const std::vector<at::Tensor>& totals) {
  check_lists(arguments, totals);
  check_orthogonal(options.losses());
  if (options.finishes()) {
    const bool shared = arguments.states.size() == 1;
    for (size_t level = 0; level < arguments.step_counts.size(); ++level) {
      check_step_counts("residual_quantize_", arguments.step_counts[level],
                        arguments.states[shared ? 0 : level].embed);
    }
  }
  const Stack stack(tokens, arguments, options);
  const auto walk = stack.walk();
  ResidualQuantizeStep step;
  step.totals = totals;
  step.losses = stack.learn(walk, step.totals);
  step.quantized = walk.output;
  step.indices = stack.indices(walk);
  if (options.returns_codes()) step.codes = walk.codes;
  return step;
}

}  // namespace torchvq::functional
