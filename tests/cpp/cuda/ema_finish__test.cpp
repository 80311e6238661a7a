// Codes from averages for CUDA, emulated, against the CPU's.
#include <torchvq/ops/ema_finish_.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_ema_finish_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

struct State {
  at::Tensor embed, cluster_size, embed_avg;

  State(int64_t heads, int64_t size, int64_t dim, at::ScalarType dtype = at::kFloat)
      : embed(at::randn({heads, size, dim}).to(dtype)),
        cluster_size(at::rand({heads, size}).to(dtype) * 4),
        embed_avg(at::randn({heads, size, dim}).to(dtype)) {}

  void expect_cpu_codes(const ops::EmaFinishOptions& options) const {
    const auto expected = embed.clone();
    ops::ema_finish_(expected, cluster_size, embed_avg, options);
    for (const auto order : {Order::kForward, Order::kShuffled}) {
      const auto actual = embed.clone(), sizes = cluster_size.clone(), averages = embed_avg.clone();
      emulated({.order = order}, [&] {
        ops::ema_finish_(actual, sizes, averages, options);
        return 0;
      });
      expect_same(actual, expected);
      expect_same(sizes, cluster_size);
      expect_same(averages, embed_avg);
    }
  }
};

TEST(CudaEmaFinish, TypesMetricsAndSizes) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const auto metric : {"euclidean", "cosine"}) {
      for (const double decay : {0.0, 0.8, 1.0}) {
        const ops::EmaFinishOptions options = {.decay = decay, .eps = 1e-5, .metric = metric};
        State(2, 21, 17, dtype).expect_cpu_codes(options);
        State(1, 1, 1, dtype).expect_cpu_codes(options);
        State(1, 1100, 3, dtype).expect_cpu_codes(options);
      }
    }
  }
  State(1, 3, 512).expect_cpu_codes({.decay = 0.99, .eps = 1e-5, .metric = "cosine"});
}

TEST(CudaEmaFinish, UnusedCodesAreDrawnToHeavyOnes) {
  at::manual_seed(2);
  for (const auto metric : {"euclidean", "cosine"}) {
    State state(2, 50, 8);
    // Ties among the heavy codes, faint and unused ones; more unused codes than used ones in one
    // head, none in use in the other; no sizes.
    state.cluster_size = at::randint(0, 4, {2, 50}).to(at::kFloat) * 5e-6;
    state.cluster_size.slice(1, 0, 50, 3).fill_(20);
    state.expect_cpu_codes({.decay = 0.9, .eps = 1e-5, .metric = metric});
    state.cluster_size[0].slice(0, 4).fill_(1e-6);
    state.cluster_size[1].fill_(1e-6);
    state.expect_cpu_codes({.decay = 0.9, .eps = 1e-5, .metric = metric});
    state.cluster_size.zero_();
    state.expect_cpu_codes({.decay = 0.9, .eps = 1e-5, .metric = metric});
    state.expect_cpu_codes({.decay = 0.9, .eps = 0, .metric = metric});
  }
}

TEST(CudaEmaFinish, FaintCodesThatAreInUse) {
  at::manual_seed(5);
  for (const auto metric : {"euclidean", "cosine"}) {
    State state(2, 50, 8);
    // What is left of one token after up to 400 steps, of which a code may wait some 200.
    state.cluster_size = at::pow(0.9, at::randint(0, 400, {2, 50})).to(at::kFloat);
    state.expect_cpu_codes({.decay = 0.9, .eps = 1e-5, .metric = metric});
  }
}

TEST(CudaEmaFinish, ExtremesOfTheState) {
  at::manual_seed(3);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {kNaN, 3e38, std::numeric_limits<double>::infinity(), -1.0, 1e-40}) {
    State state(2, 9, 6);
    state.cluster_size[0][2] = value;
    state.embed_avg[1][3][1] = value;
    state.embed_avg[1].slice(0, 5).mul_(1e38);
    state.embed_avg[1][4].zero_();
    for (const auto metric : {"euclidean", "cosine"})
      state.expect_cpu_codes({.decay = 0.9, .eps = 1e-5, .metric = metric});
  }
}

TEST(CudaEmaFinish, StridedState) {
  at::manual_seed(4);
  State state(2, 14, 8);
  state.cluster_size.slice(1, 0, 3).zero_();
  const auto embed = state.embed.permute({2, 1, 0}).clone().permute({2, 1, 0});
  emulated({}, [&] {
    ops::ema_finish_(embed, state.cluster_size.t().clone().t(),
                     state.embed_avg.permute({1, 0, 2}).clone().permute({1, 0, 2}),
                     {.decay = 0.8, .eps = 1e-5});
    return 0;
  });
  ops::ema_finish_(state.embed, state.cluster_size, state.embed_avg, {.decay = 0.8, .eps = 1e-5});
  expect_same(embed, state.embed);
}

}  // namespace
}  // namespace torchvq::cuda_ema_finish_test
