// sample_codes for CUDA, emulated, against the CPU's: the emulation uses the CPU's exponential, so
// all draws are the same.
#include <torchvq/ops/sample_codes.h>

#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_sample_codes_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

struct Draw {
  at::Tensor x, codebook;
  double temperature = 0.5;
  const char* metric = "euclidean";
  int64_t stream = 0;
  std::optional<int64_t> topk = std::nullopt;

  at::Tensor indices() const {
    const auto rng = at::tensor(std::vector<int64_t>{7, 3}, at::kLong);
    return ops::sample_codes(x, codebook, rng, temperature, metric, stream, topk);
  }

  void expect_cpu_draws() const {
    const auto expected = indices();
    for (const auto order : {Order::kForward, Order::kShuffled}) {
      expect_same(emulated({.order = order}, [&] { return indices(); }), expected);
    }
  }
};

TEST(CudaSampleCodes, MetricsTemperaturesAndSizes) {
  at::manual_seed(1);
  for (const auto metric : {"euclidean", "cosine"}) {
    for (const double temperature : {0.0, 1e-3, 0.5, 10.0}) {
      for (const int64_t size : {1, 5, 32, 100}) {
        Draw{at::randn({2, 40, 6}), at::randn({2, size, 6}), temperature, metric}
            .expect_cpu_draws();
      }
    }
  }
}

TEST(CudaSampleCodes, SeveralCodesForEachToken) {
  at::manual_seed(4);
  for (const auto metric : {"euclidean", "cosine"}) {
    // At the lowest temperature all chances but one are 0, so ties decide.
    for (const double temperature : {0.0, 1e-320, 1e-3, 0.5, 10.0}) {
      for (const int64_t size : {3, 32, 100}) {
        for (const int64_t topk : {int64_t{1}, int64_t{3}, size}) {
          Draw{at::randn({2, 20, 6}), at::randn({2, size, 6}), temperature, metric, 1, topk}
              .expect_cpu_draws();
        }
      }
    }
  }
}

TEST(CudaSampleCodes, TheFirstOfSeveralCodesIsTheOneDrawnAlone) {
  at::manual_seed(5);
  Draw draw{at::randn({2, 30, 6}), at::randn({2, 40, 6})};
  const auto alone = emulated({}, [&] { return draw.indices(); });
  draw.topk = 40;
  const auto all = emulated({}, [&] { return draw.indices(); });
  expect_same(all.select(-1, 0), alone);
  expect_same(std::get<0>(all.sort(-1)), at::arange(40, at::kLong).expand_as(all));
}

TEST(CudaSampleCodes, ManyHeadsOfOneToken) {
  at::manual_seed(6);
  for (const auto metric : {"euclidean", "cosine"}) {
    for (const auto topk : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
      Draw draw{at::randn({70, 1, 6}), at::randn({70, 33, 6}), 0.5, metric, 2, topk};
      draw.x[7][0][2] = std::numeric_limits<float>::quiet_NaN();
      draw.expect_cpu_draws();
    }
  }
}

TEST(CudaSampleCodes, TypesAndStreams) {
  at::manual_seed(2);
  const auto codebook = at::randn({1, 50, 4});
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    Draw{at::randn({1, 30, 4}).to(dtype), codebook, 0.3, "euclidean", 5}.expect_cpu_draws();
  }
}

TEST(CudaSampleCodes, TiesNumbersThatAreNoneAndNoTokens) {
  at::manual_seed(3);
  Draw draw{at::zeros({1, 6, 3}), at::zeros({1, 70, 3}), 0.0};
  draw.expect_cpu_draws();
  EXPECT_EQ(emulated({}, [&] { return draw.indices(); }).sum().item<int64_t>(), 0);
  draw = {at::randn({1, 6, 3}), at::randn({1, 70, 3}), 0.7};
  draw.x[0][1][2] = std::numeric_limits<float>::quiet_NaN();
  draw.x[0][2][0] = std::numeric_limits<float>::infinity();
  draw.expect_cpu_draws();
  draw.topk = 3;
  draw.expect_cpu_draws();
  const auto none = emulated({}, [&] { return draw.indices(); }).narrow(1, 1, 2);
  expect_same(none, at::arange(3, at::kLong).expand_as(none));
  draw.x = at::zeros({1, 0, 3});
  draw.expect_cpu_draws();
}

TEST(CudaSampleCodes, OneLaunchForABlockOfTokens) {
  const Draw draw{at::randn({2, 6, 3}), at::randn({2, 7, 3})};
  const auto before = cuda_shim::launches();
  emulated({}, [&] { return draw.indices(); });
  EXPECT_EQ(cuda_shim::launches() - before, 2);
}

TEST(CudaSampleCodes, OneLaunchForManyHeadsOfOneToken) {
  const Draw draw{at::randn({50, 1, 3}), at::randn({50, 7, 3}), 0.5, "euclidean", 0, 4};
  const auto before = cuda_shim::launches();
  emulated({}, [&] { return draw.indices(); });
  EXPECT_EQ(cuda_shim::launches() - before, 1);
}

}  // namespace
}  // namespace torchvq::cuda_sample_codes_test
