// Any device: level after level by nearest_code; the reference for the CPU kernel, except for the
// order of additions in products.
#include "ops/projected_residual_encode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/nearest_code.h>

#include "detail/ordered_sum.h"
#include "detail/product_dtype.h"
#include "detail/root.h"

namespace torchvq {
namespace {

constexpr double kSmallestDivisor = 1e-12;  // smallest divisor, as in torch's normalize

/// vectors (B, T, columns) times a weight (rows, columns), plus bias.
at::Tensor project(const at::Tensor& vectors, const at::Tensor& weight, const at::Tensor& bias) {
  const auto products = detail::precise_mm(vectors.flatten(0, 1), weight.flatten(1).t());
  return products.view({vectors.size(0), vectors.size(1), weight.size(0)}) + bias;
}

at::Tensor divide_by_norms(const at::Tensor& vectors) {
  const auto squares = detail::sum_in_order(vectors * vectors).unsqueeze(-1);
  const auto norms = detail::rounded_root(squares.to(at::kDouble)).to(vectors.scalar_type());
  return vectors / norms.clamp_min(kSmallestDivisor);
}

/// Indices (B, T) of level n.
at::Tensor find(const detail::ProjectedResidualProblem& problem, size_t n,
                const at::Tensor& latents) {
  const auto& codebook = problem.codebooks[n];
  const auto flat = latents.flatten(0, 1);
  const auto shape = latents.sizes().slice(0, 2);
  ops::NearestCodeOptions options;
  options.return_codes(false);
  if (!problem.cosine) return ops::nearest_code(flat, codebook, options).indices.view(shape);
  if (problem.zero_code != 0) {
    const auto zero = codebook.ne(0).any(1).logical_not();
    // Filled with 0, as 0 * zero_code is NaN where zero_code is infinite in the dtype of the codes.
    const auto bias = zero.to(codebook.scalar_type()) * problem.zero_code;
    options.bias(bias.masked_fill(zero.logical_not(), 0));
  }
  return ops::nearest_code(divide_by_norms(flat), divide_by_norms(codebook), options)
      .indices.view(shape);
}

detail::ProjectedResidualTensors projected_residual_encode(
    const at::Tensor& x, at::TensorList codebooks, at::TensorList in_weights,
    at::TensorList in_biases, at::TensorList out_weights, at::TensorList out_biases,
    std::string_view metric, double zero_code) {
  const detail::ProjectedResidualArguments arguments = {
      x, codebooks, in_weights, in_biases, out_weights, out_biases, metric, zero_code};
  const detail::ProjectedResidualProblem problem(arguments);
  auto residual = problem.x, total = at::zeros_like(problem.x);
  std::vector<at::Tensor> indices, latents, errors;
  for (size_t n = 0; n < problem.codebooks.size(); ++n) {
    const auto latent = project(residual, problem.in_weights[n], problem.in_biases[n]);
    const auto index = find(problem, n, latent);
    const auto code = problem.codebooks[n].index_select(0, index.flatten()).view(latent.sizes());
    const auto step = code - latent;
    const auto part = project(latent + step, problem.out_weights[n], problem.out_biases[n]);
    total = total + part;
    residual = residual - part;
    indices.push_back(index), latents.push_back(latent);
    errors.push_back(detail::sum_in_order(step * step));
  }
  auto results = detail::projected_residual_results(arguments);
  std::get<0>(results).copy_(total);
  std::get<1>(results).copy_(at::stack(indices, -1));
  std::get<2>(results).copy_(at::cat(latents, -1));
  std::get<3>(results).copy_(at::stack(errors, -1));
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("projected_residual_encode", projected_residual_encode);
}

}  // namespace torchvq
