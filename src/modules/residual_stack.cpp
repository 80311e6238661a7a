#include "modules/residual_stack.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/layout.h>

#include "modules/joined.h"
#include "modules/projection.h"

namespace torchvq::detail {

namespace F = functional;

namespace {

struct Walk {
  at::Tensor total;
  at::Tensor indices;               // (B, N, Q)
  std::vector<LevelChoice> levels;  // none if one operator went through them
};

/// (B, N, Q): dropped levels have no index.
at::Tensor indices_of(const std::vector<LevelChoice>& levels, int64_t all) {
  std::vector<at::Tensor> indices;
  for (const auto& level : levels) indices.push_back(level.indices);
  indices.resize(static_cast<size_t>(all), at::full_like(indices[0], -1));
  return at::stack(indices, -1);
}

Walk walk(const StackFamily& family, const at::Tensor& inputs,
          const std::optional<at::Tensor>& mask, int64_t depth) {
  auto residual = inputs, total = at::zeros_like(inputs);
  std::vector<LevelChoice> levels;
  for (int64_t index = 0; index < depth; ++index) {
    levels.push_back(family.quantize(index, residual, mask));
    const auto& codes = levels.back().codes;
    total = total.add(codes);
    residual = residual.sub(family.attached ? codes : codes.detach());
  }
  return {family.estimate ? family.estimate(inputs, total) : total,
          indices_of(levels, family.levels), std::move(levels)};
}

/// Dropped levels have no index.
Walk walk_at_once(const StackFamily& family, const at::Tensor& inputs, int64_t depth) {
  auto [total, indices] = family.at_once(inputs, depth);
  return {total, at::constant_pad_nd(indices, {0, family.levels - depth}, -1), {}};
}

at::Tensor codes_of(const StackFamily& family, const std::vector<LevelChoice>& levels,
                    const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  std::vector<at::Tensor> codes;
  for (const auto& level : levels) {
    const auto rows = mask ? F::fill_masked(level.codes, *mask) : level.codes;
    codes.push_back(F::unpack_positions(rows, x.sym_sizes(), family.layout.channel_first));
  }
  codes.resize(static_cast<size_t>(family.levels), at::zeros_like(codes[0]).detach());
  return detail::stacked(codes);
}

std::vector<at::Tensor> decode(const StackFamily& family, const at::Tensor& indices, bool fewer) {
  const auto given = indices.dim() > 0 ? indices.size(-1) : 0;
  TORCH_CHECK_VALUE(given <= family.levels && given >= (fewer ? 1 : family.levels),
                    family.layout.owner, ": expected indices to be of ", family.levels,
                    " levels on the last axis, or fewer with quantize_dropout, but got shape ",
                    indices.sizes());
  std::vector<at::Tensor> codes;
  for (int64_t index = 0; index < given; ++index) {
    codes.push_back(family.decode(index, indices.select(-1, index)));
  }
  return codes;
}

}  // namespace

StackResult run_stack(const StackFamily& family, const at::Tensor& x,
                      const std::optional<at::Tensor>& mask, int64_t depth, bool all_codes) {
  const auto& layout = family.layout;
  layout.check(x);
  const auto real = layout.token_mask(x, mask, std::nullopt);
  auto tokens = layout.pack(x);
  if (real) {
    // Padding may hold anything, NaN included; zeros keep it out of every gradient.
    tokens = F::fill_masked(tokens, *real);
  }
  auto inputs = family.project_in ? apply_linear(family.project_in, tokens) : tokens;
  if (inputs.scalar_type() == at::kHalf || inputs.scalar_type() == at::kBFloat16) {
    // Residual and sum stay in float32 between levels.
    inputs = inputs.to(at::kFloat);
  }
  if (family.prepare) inputs = family.prepare(inputs);
  const auto found = family.at_once && !all_codes ? walk_at_once(family, inputs, depth)
                                                  : walk(family, inputs, real, depth);
  auto quantized = family.project_out ? apply_linear(family.project_out, found.total) : found.total;
  quantized = quantized.to(x.scalar_type());
  auto indices = found.indices;
  if (real) {
    quantized = F::fill_padding(quantized, *real);
    indices = indices.masked_fill(real->logical_not().unsqueeze(-1), -1);
  }
  return {layout.unpack(quantized, x),
          F::unpack_positions(indices, x.sym_sizes(), layout.channel_first),
          all_codes ? codes_of(family, found.levels, x, real) : at::Tensor()};
}

at::Tensor stack_codes(const StackFamily& family, const at::Tensor& indices, bool fewer) {
  auto codes = decode(family, indices, fewer);
  codes.resize(static_cast<size_t>(family.levels), at::zeros_like(codes[0]));
  return detail::stacked(codes);
}

at::Tensor stack_output(const StackFamily& family, const at::Tensor& indices, bool fewer) {
  const auto codes = decode(family, indices, fewer);
  auto output = at::zeros_like(codes[0]);
  for (const auto& level : codes) output = output.add(level);
  if (family.project_out) {
    output = apply_linear(family.project_out, output);
    // Masked tokens have no output; the bias of the projection would give them one.
    output = output.masked_fill(indices.lt(0).all(-1, /*keepdim=*/true), 0);
  }
  // (B, dim) has no position to move.
  return output.dim() > 2 ? family.layout.place_features(output) : output;
}

int64_t stack_depth(const std::optional<int64_t>& seed, const at::Tensor& rng,
                    const functional::DepthRule& rule) {
  if (seed) return F::seeded_depth(*seed, rule);
  const auto step = rng.select(0, 1);
  return F::drawn_depth(at::stack({at::zeros_like(step), step}), rule);
}

}  // namespace torchvq::detail
