// The learning step of a codebook for CUDA, emulated, against the CPU's, step after step.
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/ema_update_.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_ema_update_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

struct State {
  at::Tensor cluster_size, embed_avg, embed;

  State clone() const { return {cluster_size.clone(), embed_avg.clone(), embed.clone()}; }
};

State fresh_state(int64_t heads, int64_t size, int64_t dim, at::ScalarType dtype) {
  const auto embed = at::randn({heads, size, dim}).to(dtype);
  return {at::ones({heads, size}, embed.options()), embed.clone(), embed};
}

struct Step {
  at::Tensor x, indices;
  ops::EmaUpdateOptions options;

  at::Tensor on(const State& state) const {
    const auto [counts, sums, exponents] =
        ops::code_statistics(x, indices, ops::code_exponents(state.embed));
    ops::ema_update_(state.cluster_size, state.embed_avg, state.embed, counts, sums, exponents,
                     options);
    return counts;
  }
};

void expect_same_state(const State& actual, const State& expected) {
  expect_same(actual.cluster_size, expected.cluster_size);
  expect_same(actual.embed_avg, expected.embed_avg);
  expect_same(actual.embed, expected.embed);
}

/// `steps` steps whose tokens use few of the codes, so that the others become unused.
void expect_cpu_steps(const State& start, const ops::EmaUpdateOptions& options, int steps = 4,
                      int64_t tokens = 30) {
  const auto expected = start.clone(), actual = start.clone();
  const int64_t heads = start.embed.size(0), size = start.embed.size(1), dim = start.embed.size(2);
  for (int i = 0; i < steps; ++i) {
    const Step step = {at::randn({heads, tokens, dim}).to(start.embed.scalar_type()),
                       at::randint(-1, std::max<int64_t>(1, size / 2), {heads, tokens}, at::kLong),
                       options};
    const auto order = i % 2 == 0 ? Order::kShuffled : Order::kBackward;
    const auto counts = emulated({.order = order}, [&] { return step.on(actual); });
    expect_same(counts, step.on(expected));
    expect_same_state(actual, expected);
  }
}

TEST(CudaEmaUpdate, StepsOfEveryKind) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const auto metric : {"euclidean", "cosine"}) {
      for (const bool from_codebook : {false, true}) {
        expect_cpu_steps(
            fresh_state(2, 21, 17, dtype),
            {.decay = 0.8, .eps = 1e-5, .metric = metric, .from_codebook = from_codebook});
      }
    }
  }
}

TEST(CudaEmaUpdate, UnusedCodesAreDrawnToHeavyOnes) {
  at::manual_seed(2);
  for (const auto metric : {"euclidean", "cosine"}) {
    auto state = fresh_state(2, 50, 8, at::kFloat);
    state.cluster_size = at::arange(100).remainder(7).to(at::kFloat).view({2, 50}) * 3e-6;
    expect_cpu_steps(state, {.decay = 0.9, .eps = 1e-5, .metric = metric}, 3, 400);
  }
}

TEST(CudaEmaUpdate, WithoutFinish) {
  at::manual_seed(3);
  expect_cpu_steps(fresh_state(1, 12, 5, at::kFloat), {.decay = 0.5, .eps = 0, .finish = false});
}

TEST(CudaEmaUpdate, Weights) {
  at::manual_seed(4);
  for (const auto& weight : {at::rand({}), at::rand({12}), at::rand({2, 1}) * 3, at::rand({2, 12})})
    expect_cpu_steps(fresh_state(2, 12, 6, at::kFloat),
                     {.decay = 0.7, .eps = 1e-5, .weight = weight});
}

TEST(CudaEmaUpdate, OneCodeManyCodesLongRows) {
  at::manual_seed(5);
  const ops::EmaUpdateOptions options = {.decay = 0.99, .eps = 1e-5};
  expect_cpu_steps(fresh_state(1, 1, 1, at::kFloat), options);
  expect_cpu_steps(fresh_state(1, 1100, 2, at::kFloat), options, 2, 400);
  expect_cpu_steps(fresh_state(1, 3, 100, at::kFloat), options);
}

TEST(CudaEmaUpdate, HeadsWithoutTokensStay) {
  at::manual_seed(6);
  const auto start = fresh_state(2, 6, 4, at::kFloat);
  Step step = {
      at::randn({2, 10, 4}), at::randint(6, {2, 10}, at::kLong), {.decay = 0.8, .eps = 1e-5}};
  step.indices[1].fill_(-1);
  const auto expected = start.clone(), actual = start.clone();
  step.on(expected);
  emulated({}, [&] { return step.on(actual); });
  expect_same_state(actual, expected);
  expect_same(actual.embed[1], start.embed[1]);
  EXPECT_FALSE(at::equal(actual.embed[0], start.embed[0]));
}

TEST(CudaEmaUpdate, ExtremesOfTheState) {
  at::manual_seed(7);
  auto state = fresh_state(2, 9, 6, at::kFloat);
  state.embed_avg[0].mul_(3e38);
  state.embed[0].mul_(1e30);
  state.cluster_size[0][2] = 3e38f;
  state.cluster_size[1][3] = std::numeric_limits<float>::quiet_NaN();
  state.cluster_size[0][4] = 0;
  expect_cpu_steps(state, {.decay = 0.9, .eps = 1e-5});
  expect_cpu_steps(state, {.decay = 1, .eps = 0});
}

TEST(CudaEmaUpdate, StridedState) {
  at::manual_seed(8);
  const auto embed = at::randn({8, 14, 2}).permute({2, 1, 0});
  State state = {at::ones({14, 2}).t(), embed.clone(), embed};
  const Step step = {
      at::randn({2, 20, 8}), at::randint(14, {2, 20}, at::kLong), {.decay = 0.8, .eps = 1e-5}};
  const auto expected = state.clone();
  step.on(expected);
  emulated({}, [&] { return step.on(state); });
  expect_same_state(state, expected);
}

}  // namespace
}  // namespace torchvq::cuda_ema_update_test
