// Encoding by the levels of a DAC (Q codebooks of K codes of D features, C features outside) against
// the same levels in plain ATen: convolution, unit vectors, distances, argmin, lookup, convolution.
#include <torchvq/ops/projected_residual_encode.h>

#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

namespace {

struct Problem {
  at::Tensor x;  ///< (1, C, N)
  torchvq::ops::ProjectedLevels levels;

  explicit Problem(const benchmark::State& state) {
    at::set_num_threads(1);
    const auto count = state.range(0), codes = state.range(2), dim = state.range(3),
               features = state.range(4);
    x = at::randn({1, features, count});
    for (int64_t level = 0; level < state.range(1); ++level) {
      levels.codebooks.push_back(at::randn({codes, dim}));
      levels.in_weights.push_back(at::randn({dim, features, 1}) * 0.03);
      levels.in_biases.push_back(at::randn({dim}) * 0.1);
      levels.out_weights.push_back(at::randn({features, dim, 1}) * 0.3);
      levels.out_biases.push_back(at::randn({features}) * 0.1);
    }
  }
};

at::Tensor normalised(const at::Tensor& vectors) {
  return vectors / vectors.norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-12);
}

at::Tensor nearest_by_angle(const at::Tensor& latent, const at::Tensor& codebook) {
  const auto units = normalised(latent), codes = normalised(codebook);
  const auto distances = codes.square().sum(-1) - at::matmul(units, codes.t()) * 2;
  return distances.argmin(-1);
}

/// Vectors per second.
template <typename Encode>
void measure(benchmark::State& state, const Encode& encode) {
  const at::NoGradGuard no_gradient;
  const Problem problem(state);
  for (auto _ : state) benchmark::DoNotOptimize(encode(problem));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void projected_residual_encode(benchmark::State& state) {
  const auto options = torchvq::ops::ProjectedResidualEncodeOptions().metric("cosine");
  measure(state, [&](const Problem& problem) {
    return torchvq::ops::projected_residual_encode(problem.x.transpose(1, 2), problem.levels,
                                                   options)
        .indices;
  });
}

void plain(benchmark::State& state) {
  measure(state, [](const Problem& problem) {
    const auto& levels = problem.levels;
    auto residual = problem.x, total = at::zeros_like(residual);
    std::vector<at::Tensor> indices;
    for (size_t n = 0; n < levels.codebooks.size(); ++n) {
      const auto latent = at::conv1d(residual, levels.in_weights[n], levels.in_biases[n]);
      const auto index = nearest_by_angle(latent[0].t(), levels.codebooks[n]);
      const auto code = levels.codebooks[n].index_select(0, index).t().unsqueeze(0);
      const auto part =
          at::conv1d(latent + (code - latent), levels.out_weights[n], levels.out_biases[n]);
      total = total + part;
      residual = residual - part;
      indices.push_back(index);
    }
    return at::stack(indices);
  });
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"N", "Q", "K", "D", "C"})
      ->ArgsProduct({{1, 16, 64, 750}, {9}, {1024}, {8}, {1024}});
}

}  // namespace

BENCHMARK(projected_residual_encode)->Apply(shapes);
BENCHMARK(plain)->Apply(shapes);
