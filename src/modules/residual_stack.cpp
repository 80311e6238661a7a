#include "modules/residual_stack.h"

#include <utility>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "detail/checks.h"
#include "functional/residual_walk.h"
#include "modules/indices.h"
#include "modules/projection.h"
#include "modules/residual_engine.h"

namespace torchvq::detail {

namespace F = functional;

namespace {

/// The results of all levels in use, with the gradient of the stack.
LevelsResult process(ResidualStack& stack, const at::Tensor& inputs,
                     const std::optional<at::Tensor>& mask, int64_t depth, bool all_codes) {
  const bool averages = stack.gain == StackGain::kAveraged;
  const bool estimates = stack.gain == StackGain::kEstimated;
  // With an estimator over the stack, levels receive gradients only from their losses. These are
  // divided by the number of all levels, in a step that drops some as well: such a step weighs less,
  // as in the reference, whose gain is the number of levels in use.
  const auto compared = averages || estimates ? F::balanced(inputs, stack.levels) : inputs;
  auto found = stack.process_levels(compared, mask, depth, all_codes);
  if (estimates) {
    found.total = stack.estimate(F::weighted(inputs, depth, stack.levels), found.total);
  }
  for (auto& codes : found.codes) {
    // That of averaged levels is defined for the sum of their codes alone.
    if (averages) codes = codes.detach();
  }
  // Dropped levels have index -1.
  found.indices = at::constant_pad_nd(found.indices, {0, stack.levels - depth}, -1);
  return found;
}

/// Reshapes tokens (B, N, heads * D) to (B, N * heads, D): levels treat each head as a token.
at::Tensor split_stack_heads(const at::Tensor& inputs, int64_t heads) {
  return heads == 1 ? inputs : inputs.unflatten(-1, {heads, -1}).flatten(1, 2);
}

/// The inverse: values (B, N * heads, D) as (B, N, heads * D).
at::Tensor merge_stack_heads(const at::Tensor& values, int64_t heads) {
  return heads == 1 ? values : values.unflatten(1, {-1, heads}).flatten(2);
}

std::vector<at::Tensor> decode(ResidualStack& stack, const at::Tensor& indices, bool fewer) {
  const auto given = decoded_levels(stack.layout.owner, indices, stack.levels, fewer);
  const auto heads = stack.layout.heads;
  TORCH_CHECK_VALUE(heads == 1 || (indices.dim() > 1 && indices.size(-2) == heads),
                    stack.layout.owner, ": expected indices to be of ", heads,
                    " heads on the axis before the last, but got shape ", indices.sizes());
  std::vector<at::Tensor> codes;
  for (int64_t index = 0; index < given; ++index) {
    const auto level = stack.decode_level(index, indices.select(-1, index));
    codes.push_back(heads == 1 ? level : level.flatten(-2));
  }
  return codes;
}

}  // namespace

at::Tensor ResidualStack::prepare_inputs(const at::Tensor& inputs,
                                         const std::optional<at::Tensor>& /*mask*/) {
  return inputs;
}

at::Tensor ResidualStack::estimate(const at::Tensor& /*inputs*/, const at::Tensor& /*total*/) {
  TORCH_INTERNAL_ASSERT(false, layout.owner, ": a stack with kEstimated has to say how");
}

LevelsResult ResidualStack::process_in_turn(
    const at::Tensor& inputs, int64_t depth,
    const std::function<LevelResult(int64_t index, const at::Tensor& residual)>& quantize_level)
    const {
  std::vector<at::Tensor> codes, indices;
  F::StackGradient gradient;
  gradient.training = true;
  gradient.handed_on = gain == StackGain::kAttached ? 1 : 0;
  const auto choose = [&](int64_t index, const at::Tensor& residual,
                          const F::LevelSums& /*before*/) -> F::WalkedLevel {
    auto level = quantize_level(index, residual);
    codes.push_back(level.codes);
    indices.push_back(level.indices);
    return {level.codes, level.codes};
  };
  auto total = F::walk_levels(inputs, depth, gradient, /*sums_outputs=*/false, choose).codes;
  return {std::move(total), at::stack(indices, -1), std::move(codes)};
}

std::optional<at::Tensor> checked_mask(const Layout& layout, const at::Tensor& x,
                                       const std::optional<at::Tensor>& mask) {
  layout.check_input(x);
  return layout.mask_of_items(x, mask);
}

StackResult run_stack(ResidualStack& stack, const at::Tensor& x,
                      const std::optional<at::Tensor>& mask, int64_t depth, bool all_codes) {
  const auto& layout = stack.layout;
  auto inputs = enter_stack(x, mask, layout, stack.project_in);
  const auto heads = layout.heads;
  inputs = split_stack_heads(inputs, heads);
  auto rows = mask;
  if (mask && heads > 1) rows = mask->repeat_interleave(heads, 1);
  inputs = stack.prepare_inputs(inputs, rows);
  auto found = process(stack, inputs, rows, depth, all_codes);
  auto indices = found.indices;
  if (rows) indices = indices.masked_fill(rows->logical_not().unsqueeze(-1), -1);
  if (heads > 1) indices = indices.unflatten(1, {-1, heads});
  found.total = merge_stack_heads(found.total, heads);
  for (auto& codes : found.codes) {
    codes = restore_codes(merge_stack_heads(codes, heads), x, mask, layout);
  }
  indices = layout.unpack_positions(indices, x);
  at::Tensor codes;
  if (all_codes) {
    // The reference looks codes up, so they have the gradient of decoding, and no noise.
    codes = stack.vqp_compat ? stack_codes(stack, indices, /*fewer=*/true)
                             : stack_levels(std::move(found.codes), stack.levels, 0);
  }
  return {restore_output(found.total, x, mask, layout, stack.project_out), indices, codes};
}

at::Tensor stack_codes(ResidualStack& stack, const at::Tensor& indices, bool fewer) {
  const auto whole = as_int64(stack.layout.owner, indices);
  return stack.module->in_half_dtype(stack_levels(decode(stack, whole, fewer), stack.levels, 0));
}

at::Tensor stack_output(ResidualStack& stack, const at::Tensor& indices, bool fewer) {
  const auto whole = as_int64(stack.layout.owner, indices);
  const auto codes = decode(stack, whole, fewer);
  auto output = at::zeros_like(codes[0]);
  for (const auto& level : codes) output = output.add(level);
  return stack.layout.place_features(
      project_decoded(stack.project_out, output, whole, *stack.module));
}

void check_depths(const char* owner, bool draws, const at::Tensor& rng) {
  TORCH_CHECK_VALUE(!draws || rng.defined(), owner,
                    ": expected quantize_dropout to be given to the constructor, which makes the "
                    "generator of the depths (or pass rand_quantize_dropout_fixed_seed to "
                    "forward), but got set on the module");
}

int64_t stack_depth(const std::optional<int64_t>& seed, const at::Tensor& rng,
                    const functional::DepthRule& rule) {
  if (seed) return F::seeded_depth(*seed, rule);
  const auto step = rng.select(0, 1);
  return F::drawn_depth(at::stack({at::zeros_like(step), step}), rule);
}

}  // namespace torchvq::detail
