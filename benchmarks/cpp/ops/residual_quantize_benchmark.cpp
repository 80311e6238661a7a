// A training step of a residual stack, forward and backward, against the same stack in plain ATen:
// for each level distances, argmin, lookup, moving averages; then one straight-through estimator.
#include <torchvq/functional/residual_quantize.h>

#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace {

namespace F = torchvq::functional;

constexpr double kDecay = 0.8, kEps = 1e-5;

struct Problem {
  at::Tensor tokens;
  F::ResidualQuantizeArguments arguments;
  F::ResidualQuantizeOptions options;

  explicit Problem(const benchmark::State& state) {
    at::set_num_threads(1);
    const auto count = state.range(0), levels = state.range(1), codes = state.range(2),
               dim = state.range(3);
    tokens = at::randn({1, count, dim}).requires_grad_();
    for (int64_t level = 0; level < levels; ++level) {
      const auto embed = at::randn({1, codes, dim});
      arguments.codebooks.push_back(embed);
      arguments.states.push_back({embed, at::ones({1, codes}), embed.clone(),
                                  at::zeros({1}, at::kLong), at::tensor({level, int64_t{0}})});
      arguments.step_counts.push_back(at::zeros({1, codes}, at::kLong));
    }
    options.learns(true).finishes(true);
    options.losses().training(true);
    options.learning().decay(kDecay).eps(kEps);
  }
};

/// Updates the averages of a level, and its codes, from the tokens of one step.
void learn_plainly(const F::CodebookState& state, const at::Tensor& x, const at::Tensor& indices) {
  const at::NoGradGuard no_grad;
  const auto counts = at::bincount(indices, {}, state.embed.size(1)).to(at::kFloat).unsqueeze(0);
  const auto sums = at::zeros_like(state.embed[0]).index_add(0, indices, x).unsqueeze(0);
  state.cluster_size.mul_(kDecay).add_(counts, 1 - kDecay);
  state.embed_avg.mul_(kDecay).add_(sums, 1 - kDecay);
  const auto total = state.cluster_size.sum(-1, /*keepdim=*/true);
  const auto smoothed =
      (state.cluster_size + kEps) / (total + static_cast<double>(counts.size(-1)) * kEps) * total;
  state.embed.copy_(state.embed_avg / smoothed.unsqueeze(-1));
}

/// Tokens per second of whole steps.
template <typename Step>
void measure(benchmark::State& state, const Step& step) {
  const Problem problem(state);
  for (auto _ : state) {
    step(problem).backward();
    benchmark::DoNotOptimize(problem.tokens.grad());
    problem.tokens.mutable_grad().reset();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void residual_quantize_(benchmark::State& state) {
  measure(state, [](const Problem& problem) {
    const auto step = F::residual_quantize_(problem.tokens, problem.arguments, problem.options);
    return step.quantized.sum() + step.losses.sum();
  });
}

void plain(benchmark::State& state) {
  measure(state, [](const Problem& problem) {
    const auto inputs = problem.tokens[0];
    auto residual = inputs, total = at::zeros_like(inputs);
    auto loss = at::zeros({});
    for (const auto& level : problem.arguments.states) {
      const auto indices = at::cdist(residual.detach(), level.embed[0]).argmin(-1);
      const auto codes = level.embed[0].index_select(0, indices);
      loss = loss + at::mse_loss(residual, codes);
      learn_plainly(level, residual.detach(), indices);
      total = total + codes;
      residual = residual - codes;
    }
    return (inputs + (total - inputs).detach()).sum() + loss;
  });
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"N", "Q", "K", "D"})->ArgsProduct({{1, 64, 1024}, {8}, {1024}, {64}});
}

}  // namespace

BENCHMARK(residual_quantize_)->Apply(shapes);
BENCHMARK(plain)->Apply(shapes);
