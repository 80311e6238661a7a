// lookup_codes against ATen's index_select on the same tokens.
#include <torchvq/ops/lookup_codes.h>

#include <benchmark/benchmark.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

namespace {

struct Problem {
  at::Tensor codebook;
  at::Tensor indices;

  explicit Problem(const benchmark::State& state) {
    at::set_num_threads(1);
    codebook = at::ones({1, state.range(1), state.range(2)});
    indices =
        at::arange(state.range(0), at::kLong).mul(7919).remainder(state.range(1)).unsqueeze(0);
  }
};

void count_bytes(benchmark::State& state) {
  const auto bytes =
      state.range(0) * (state.range(2) * int64_t{sizeof(float)} * 2 + int64_t{sizeof(int64_t)});
  state.SetBytesProcessed(state.iterations() * bytes);
}

void lookup_codes(benchmark::State& state) {
  const Problem problem(state);
  for (auto _ : state)
    benchmark::DoNotOptimize(torchvq::ops::lookup_codes(problem.codebook, problem.indices));
  count_bytes(state);
}

void index_select(benchmark::State& state) {
  const Problem problem(state);
  const auto codebook = problem.codebook[0];
  const auto indices = problem.indices[0];
  for (auto _ : state) benchmark::DoNotOptimize(codebook.index_select(0, indices));
  count_bytes(state);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"N", "K", "D"})->ArgsProduct({{1, 8192}, {1024}, {8, 64, 256}});
}

}  // namespace

BENCHMARK(lookup_codes)->Apply(shapes);
BENCHMARK(index_select)->Apply(shapes);
