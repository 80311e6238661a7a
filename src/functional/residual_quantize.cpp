#include <torchvq/functional/residual_quantize.h>

#include <cmath>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/estimate.h>
#include <torchvq/functional/vector_quantize.h>
#include <torchvq/ops/residual_beam_search.h>
#include <torchvq/ops/residual_encode.h>
#include <torchvq/ops/straight_through.h>

#include "detail/joined.h"

namespace torchvq::functional {
namespace {

using Tensors = std::vector<at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

/// What one level has found.
struct Level {
  SearchedTokens searched;
  at::Tensor tokens;  ///< (B, N, heads * D), what it was given, where the reference's losses see it
  OptionalTensor used;  ///< (), bool, where only the device knows whether it is in use
  OptionalTensor mask;  ///< (B, N)
};

struct Walk {
  at::Tensor output;  ///< (H, T, D)
  std::vector<Level> levels;
  Tensors codes;  ///< (H, T, D), zeros where a level is not in use
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
        inputs_(split_heads(tokens, options.layout().heads(), options.layout().separate())) {}

  Walk walk() const;
  /// The losses of all levels, and what they learn.
  Tensors learn(const Walk& walk, Tensors& totals) const;
  at::Tensor indices(const Walk& walk) const;
  at::Tensor stacked_losses(Tensors losses) const;

 private:
  size_t count() const { return arguments_.codebooks.size(); }
  bool shared() const { return arguments_.states.size() < arguments_.step_counts.size(); }
  bool training() const { return options_.losses().training(); }
  const CodebookState& state(size_t level) const { return arguments_.states[shared() ? 0 : level]; }
  /// Whether a level's output has a gradient of its own; else one estimator serves the stack.
  bool levels_have_gradients() const {
    return training() && (options_.estimates_levels() || options_.handed_on() > 0);
  }

  at::Tensor compared() const;
  at::Tensor merged(const at::Tensor& values) const;
  OptionalTensor level_mask(size_t level) const;
  at::Tensor level_rng(size_t level, bool draws) const;
  at::Tensor handed_to_next(const at::Tensor& output) const;
  Tensors chosen_at_once() const;
  at::Tensor estimate_sum(const at::Tensor& total) const;

  QuantizerLossOptions loss_options(const Level& level) const;
  std::vector<QuantizerLosses> score(const Walk& walk, Tensors& totals) const;
  Tensors update(const std::vector<Level>& levels) const;
  Tensors learn_in_turn(const std::vector<Level>& levels) const;
  Tensors learn_once(const std::vector<Level>& levels) const;
  void finish(const std::vector<Level>& levels, const Tensors& counts) const;

  const at::Tensor& tokens_;
  const ResidualQuantizeArguments& arguments_;
  const ResidualQuantizeOptions& options_;
  const distributed::Ranks& ranks_;
  const at::Tensor inputs_;  ///< (H, T, D)
};

// Search ------------------------------------------------------------------------------------------

/// The inputs as the levels' losses see them.
at::Tensor Stack::compared() const {
  if (!training() || options_.estimates_levels() || !arguments_.targets.empty()) return inputs_;
  return balanced(inputs_, static_cast<int64_t>(count()), 1 - options_.handed_on(),
                  arguments_.depth);
}

/// (B, N, heads * D) of (H, T, D).
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

/// Levels that share a codebook draw different numbers from it, and ranks for their own tokens.
at::Tensor Stack::level_rng(size_t level, bool draws) const {
  const auto& rng = state(level).rng;
  if (!draws) return rng;
  const bool first = level == 0 || !shared();
  return noise_rng(first ? rng : at::stack({rng[0].add(static_cast<int64_t>(level)), rng[1]}),
                   ranks_);
}

/// What the next level no longer sees: the output, of whose gradient it hands on a fraction.
at::Tensor Stack::handed_to_next(const at::Tensor& output) const {
  const double fraction = training() ? options_.handed_on() : 0;
  if (fraction == 0) return output.detach();
  return fraction == 1 ? output : output.mul(fraction).add(output.detach().mul(1 - fraction));
}

/// The codes (H, T) of every level, where what a level leaves does not depend on its estimator.
Tensors Stack::chosen_at_once() const {
  const at::NoGradGuard no_grad;
  Tensors codebooks;
  for (const auto& codebook : arguments_.codebooks) codebooks.push_back(codebook.detach());
  const auto inputs = inputs_.detach();
  if (options_.beam() > 1) {
    auto beam = ops::ResidualBeamSearchOptions().weights(options_.beam_weights());
    if (arguments_.mask) {
      beam.mask(
          split_mask(*arguments_.mask, options_.layout().heads(), options_.layout().separate()));
    }
    if (arguments_.depth) beam.depth(arguments_.depth->reshape(1));
    const auto paths = ops::residual_beam_search(inputs, codebooks, options_.beam(), beam);
    return paths.clamp_min(0).unbind(-1);
  }
  if (levels_have_gradients() || options_.search().temperature()) return {};
  return ops::residual_encode(inputs, codebooks,
                              ops::ResidualEncodeOptions().metric(options_.search().metric()))
      .indices.unbind(-1);
}

/// The sum of the codes with the gradient of one estimator between input and sum, whatever the
/// number of levels.
at::Tensor Stack::estimate_sum(const at::Tensor& total) const {
  const auto& search = options_.search();
  const bool noisy = options_.estimator() == "directional_reparam";
  return estimate(inputs_, total, level_rng(0, noisy),
                  EstimateOptions()
                      .estimator(options_.estimator())
                      .variance(search.variance())
                      .sync_update_v(search.sync_update_v()));
}

Walk Stack::walk() const {
  const auto& layout = options_.layout();
  const auto chosen = chosen_at_once();
  const bool own = levels_have_gradients();
  auto search = options_.search();
  if (!own) search.estimator("none");
  Walk walk;
  auto residual = compared(), total = at::zeros_like(residual);
  auto summed = options_.estimates_levels() ? at::zeros_like(residual) : at::Tensor();
  for (size_t i = 0; i < count(); ++i) {
    Level level{.searched = {}, .tokens = {}, .used = {}, .mask = level_mask(i)};
    if (options_.losses().vqp_compat()) level.tokens = merged(residual);
    if (arguments_.depth) level.used = arguments_.depth->gt(static_cast<int64_t>(i));
    OptionalTensor mask;
    if (level.mask) mask = split_mask(*level.mask, layout.heads(), layout.separate());
    if (!chosen.empty()) search.chosen(chosen[i]);
    auto found = quantize(residual, arguments_.codebooks[i],
                          level_rng(i, own || search.temperature().has_value()), mask, search);
    const auto codes = only_if(level.used, found.codes);
    const auto output = only_if(level.used, found.quantized);
    if (summed.defined()) summed = summed.add(output);
    // Nobody else holds the sum; in place it stays in the cache.
    total = codes.requires_grad() ? total.add(codes) : total.add_(codes);
    residual = residual.sub(handed_to_next(output));
    level.searched = {found.inputs, arguments_.codebooks[i], mask, found.codes, found.indices};
    walk.levels.push_back(std::move(level));
    walk.codes.push_back(codes);
  }
  walk.output = summed.defined() ? summed : estimate_sum(total);
  return walk;
}

at::Tensor Stack::indices(const Walk& walk) const {
  Tensors levels;
  for (const auto& level : walk.levels) levels.push_back(level.searched.indices);
  levels.resize(arguments_.step_counts.size(), at::full_like(levels[0], -1));
  return detail::stacked(levels, -1);
}

at::Tensor Stack::stacked_losses(Tensors losses) const {
  losses.resize(arguments_.step_counts.size(), at::zeros_like(losses[0]).detach());
  return detail::stacked(losses);
}

// After the search --------------------------------------------------------------------------------

/// The reference's losses see the tokens before the heads were split.
QuantizerLossOptions Stack::loss_options(const Level& level) const {
  auto losses = options_.losses();
  if (auto& before = losses.vqp_compat()) {
    before->tokens = level.tokens;
    before->mask = level.mask;
  }
  return losses;
}

std::vector<QuantizerLosses> Stack::score(const Walk& walk, Tensors& totals) const {
  Tensors embeds;
  std::vector<SearchedTokens> searched;
  for (size_t i = 0; i < arguments_.step_counts.size(); ++i) {
    embeds.push_back(state(i).embed.detach());
    if (i < walk.levels.size()) searched.push_back(walk.levels[i].searched);
  }
  if (totals.empty()) {
    for (auto& own : shared_totals(embeds, searched, options_.losses(), ranks_)) {
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

TaughtTokens taught(const SearchedTokens& searched) {
  return {searched.inputs.detach(), searched.indices, searched.mask};
}

/// As in the reference, a shared codebook moves once for each level.
Tensors Stack::learn_in_turn(const std::vector<Level>& levels) const {
  Tensors counts;
  for (const auto& level : levels) {
    for (auto& own : learn_codebooks_({state(0)}, {taught(level.searched)}, options_.learning())) {
      counts.push_back(std::move(own));
    }
  }
  return counts;
}

/// A shared codebook sees the residuals of all levels as the tokens of one step.
Tensors Stack::learn_once(const std::vector<Level>& levels) const {
  Tensors inputs, indices, masks;
  for (const auto& level : levels) {
    inputs.push_back(level.searched.inputs.detach());
    indices.push_back(level.searched.indices);
    if (level.searched.mask) masks.push_back(*level.searched.mask);
  }
  const auto mask = masks.empty() ? std::nullopt : OptionalTensor(at::cat(masks, 1));
  return learn_codebooks_({state(0)}, {{at::cat(inputs, 1), at::cat(indices, 1), mask}},
                          options_.learning());
}

/// Moves the averages and codes of all levels, and replaces dead codes. Returns the tokens per code
/// of each level, of all ranks; nothing if no level learns.
Tensors Stack::update(const std::vector<Level>& levels) const {
  if (!options_.learns() || !options_.learning().learns()) return {};
  const bool compat = options_.learning().vqp_compat();
  // The reference's other levels do not learn under a beam.
  const std::vector<Level> first(levels.begin(), levels.begin() + 1);
  const auto& taking_part = compat && options_.beam() > 1 ? first : levels;
  if (shared()) return compat ? learn_in_turn(taking_part) : learn_once(taking_part);
  std::vector<TaughtTokens> tokens;
  for (const auto& level : taking_part) tokens.push_back(taught(level.searched));
  return learn_codebooks_(arguments_.states, tokens, options_.learning());
}

void Stack::finish(const std::vector<Level>& levels, const Tensors& counts) const {
  if (!options_.finishes()) return;
  Tensors indices, masks, rng;
  for (size_t i = 0; i < levels.size(); ++i) {
    const auto& searched = levels[i].searched;
    indices.push_back(searched.indices);
    if (searched.mask) masks.push_back(*searched.mask);
    const bool drew = options_.learns() || options_.draws();
    if (drew && (rng.empty() || !shared())) rng.push_back(state(i).rng);
  }
  finish_step_(arguments_.step_counts, indices, rng, counts, masks, ranks_.alone());
}

Tensors Stack::learn(const Walk& walk, Tensors& totals) const {
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
  return losses;
}

}  // namespace

ResidualQuantizeStep residual_quantize_(const at::Tensor& tokens,
                                        const ResidualQuantizeArguments& arguments,
                                        const ResidualQuantizeOptions& options,
                                        const std::vector<at::Tensor>& totals) {
  const Stack stack(tokens, arguments, options);
  const auto walk = stack.walk();
  ResidualQuantizeStep step;
  step.totals = totals;
  step.losses = stack.stacked_losses(stack.learn(walk, step.totals));
  step.quantized = walk.output;
  step.indices = stack.indices(walk);
  step.codes = walk.codes;
  return step;
}

at::Tensor balanced(const at::Tensor& inputs, int64_t levels, double handed_on,
                    const std::optional<at::Tensor>& depth) {
  if (depth) {
    // A depth that the device knows alone may be 0, where no loss is left to balance.
    const auto used = depth->clamp_min(1);
    const auto gain = handed_on == 1
                          ? used
                          : at::pow(at::Scalar(handed_on), used).neg().add(1).div(1 - handed_on);
    return ops::straight_through(inputs.mul(gain.reciprocal()), inputs.detach());
  }
  double gain = 0;
  for (int64_t index = 0; index < levels; ++index) gain += std::pow(handed_on, index);
  if (gain == 0 || gain == 1) return inputs;
  return ops::straight_through(inputs.mul(1 / gain), inputs.detach());
}

}  // namespace torchvq::functional
