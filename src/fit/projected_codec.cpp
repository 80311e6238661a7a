#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torchvq/fit/projected_codec.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/nearest_code.h>

#include "fit/evaluate_blocks.h"
#include "functional/read_block.h"

namespace torchvq::fit {
namespace {

at::Tensor apply_projection(const Projection& projection, const at::Tensor& x) {
  if (!projection.weight.defined()) return x;
  const auto weight = projection.weight.to(at::kDouble).t();
  if (!projection.bias.defined()) return at::mm(x, weight);
  return at::addmm(projection.bias.to(at::kDouble), x, weight);
}

// The vectors contributed by codes (N,) of a level; -1 gives zeros.
at::Tensor decode_level(const ProjectedLevel& level, const at::Tensor& codes) {
  const auto codebook = level.codebook.to(at::kDouble).unsqueeze(0);
  const auto chosen = ops::lookup_codes(codebook, codes.unsqueeze(0))[0];
  return apply_projection(level.out, chosen).masked_fill(codes.lt(0).unsqueeze(1), 0);
}

at::Tensor encode_levels(const at::Tensor& x, const ProjectedStack& stack,
                         const std::string& metric) {
  auto residual = apply_projection(stack.in, x);
  std::vector<at::Tensor> codes;
  for (const auto& level : stack.levels) {
    const auto options = ops::NearestCodeOptions().metric(metric);
    codes.push_back(
        ops::nearest_code(apply_projection(level.in, residual), level.codebook, options).indices);
    if (codes.size() < stack.levels.size()) residual = residual - decode_level(level, codes.back());
  }
  return at::stack(codes, 1);
}

at::Tensor decode_levels(const at::Tensor& codes, const ProjectedStack& stack) {
  auto sum = decode_level(stack.levels[0], codes.select(1, 0));
  for (size_t q = 1; q < stack.levels.size(); ++q)
    sum = sum + decode_level(stack.levels[q], codes.select(1, static_cast<int64_t>(q)));
  return apply_projection(stack.out, sum).masked_fill(codes.lt(0).all(1, /*keepdim=*/true), 0);
}

}  // namespace

int64_t ProjectedCodec::columns() const {
  int64_t count = 0;
  for (const auto& stack : stacks) count += static_cast<int64_t>(stack.levels.size());
  return count;
}

const at::Tensor& ProjectedCodec::codebook(int64_t column) const {
  auto left = static_cast<size_t>(column);
  for (const auto& stack : stacks) {
    if (left < stack.levels.size()) return stack.levels[left].codebook;
    left -= stack.levels.size();
  }
  TORCH_CHECK_INDEX(false, "codebook: expected column to be below ", columns(), ", but got ",
                    column);
}

at::Tensor encode_projected(const at::Tensor& x, const ProjectedCodec& codec) {
  check_projected_codec("encode_projected", codec);
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == codec.dim,
                    "encode_projected: expected x to have shape (N, ", codec.dim, "), but got ",
                    x.sizes());
  const auto wide = x.to(at::kDouble);
  std::vector<at::Tensor> codes;
  for (const auto& stack : codec.stacks) codes.push_back(encode_levels(wide, stack, codec.metric));
  return at::cat(codes, 1);
}

at::Tensor decode_projected(const at::Tensor& codes, const ProjectedCodec& codec) {
  check_projected_codec("decode_projected", codec);
  TORCH_CHECK_VALUE(codes.dim() == 2 && codes.size(1) == codec.columns(),
                    "decode_projected: expected codes to have shape (N, ", codec.columns(),
                    "), but got ", codes.sizes());
  auto sum = at::zeros({codes.size(0), codec.dim}, at::kDouble);
  int64_t first = 0;
  for (const auto& stack : codec.stacks) {
    const auto levels = static_cast<int64_t>(stack.levels.size());
    sum += decode_levels(codes.narrow(1, first, levels), stack);
    first += levels;
  }
  return sum.to(at::kFloat);
}

Evaluation evaluate_projected(const functional::VectorBlocks& vectors, const ProjectedCodec& codec,
                              const std::function<void(int64_t rows)>& progress) {
  functional::check_blocks("evaluate_projected", vectors);
  check_projected_codec("evaluate_projected", codec);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < codec.columns(); ++i) sizes.push_back(codec.codebook(i).size(0));
  const auto quantize = [&](const at::Tensor& x) -> EvaluatedBlock {
    const auto codes = encode_projected(x, codec);
    return {x, codes, decode_projected(codes, codec)};
  };
  return evaluate_blocks("evaluate_projected", vectors, sizes, quantize, progress);
}

}  // namespace torchvq::fit
