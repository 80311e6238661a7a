// residual_encode of a few rows with and without prepared codes, at the sizes of EnCodec (1024 x
// 128) and Mimi (2048 x 256), whose 32 levels are searched in turn; and the cost of preparing a
// codebook.
#include <torchvq/ops/prepare_codes.h>
#include <torchvq/ops/residual_encode.h>

#include <vector>

#include <benchmark/benchmark.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

namespace {

using torchvq::ops::prepare_codes;
using torchvq::ops::residual_encode;

struct Problem {
  at::Tensor x;
  std::vector<at::Tensor> codebooks;

  explicit Problem(const benchmark::State& state) {
    constexpr int kLevels = 32;
    at::set_num_threads(1);
    x = at::randn({1, state.range(0), state.range(2)});
    for (int n = 0; n < kLevels; ++n) {
      codebooks.push_back(at::randn({state.range(1), state.range(2)}));
    }
  }
};

void encode_prepared(benchmark::State& state) {
  const Problem problem(state);
  torchvq::ops::ResidualEncodeOptions options;
  for (const auto& codebook : problem.codebooks) {
    options.prepared().push_back(prepare_codes(codebook));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(residual_encode(problem.x, problem.codebooks, options));
  }
}

void encode_unprepared(benchmark::State& state) {
  const Problem problem(state);
  for (auto _ : state) benchmark::DoNotOptimize(residual_encode(problem.x, problem.codebooks));
}

void prepare(benchmark::State& state) {
  const Problem problem(state);
  for (auto _ : state) benchmark::DoNotOptimize(prepare_codes(problem.codebooks[0]));
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"N", "K", "D"});
  for (const int64_t rows : {1, 4, 16, 32}) {
    bench->Args({rows, 1024, 128})->Args({rows, 2048, 256});
  }
}

}  // namespace

BENCHMARK(encode_prepared)->Apply(shapes);
BENCHMARK(encode_unprepared)->Apply(shapes);
BENCHMARK(prepare)->ArgNames({"N", "K", "D"})->Args({1, 1024, 128})->Args({1, 2048, 256});
