// Any device: level after level by nearest_code, the reference for the CPU kernel.
#include "ops/residual_encode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/nearest_code.h>

namespace torchvq {
namespace {

detail::ResidualEncodeTensors residual_encode(const at::Tensor& x, at::TensorList codebooks,
                                              std::string_view metric,
                                              const std::optional<at::Tensor>& depth,
                                              const std::optional<at::Tensor>& mask,
                                              std::optional<at::TensorList> prepared) {
  const detail::ResidualEncodeProblem problem(x, codebooks, metric, depth, mask, prepared);
  const auto options = ops::NearestCodeOptions().metric(std::string(metric)).return_codes(true);
  std::vector<at::Tensor> chosen;
  auto residual = problem.x;
  auto quantized = at::zeros_like(problem.x);
  for (const auto& codebook : problem.codebooks) {
    const auto nearest = ops::nearest_code(residual, codebook, options);
    chosen.push_back(nearest.indices);
    quantized = quantized + nearest.codes;
    residual = residual - nearest.codes;
  }
  const int64_t unused = problem.levels - static_cast<int64_t>(chosen.size());
  auto indices = at::stack(chosen, -1);
  if (unused > 0) indices = at::constant_pad_nd(indices, {0, unused}, -1);
  if (!problem.mask.defined()) return problem.of_all_heads(quantized, indices);
  const auto absent = problem.mask.logical_not().unsqueeze(-1);
  return problem.of_all_heads(quantized.masked_fill(absent, 0), indices.masked_fill(absent, -1));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("residual_encode", residual_encode);
}

}  // namespace torchvq
