// sample_codes for CUDA, emulated, against the CPU's: the emulation uses the CPU's exponential, so
// all draws are the same.
#include <torchvq/ops/sample_codes.h>

#include <limits>

#include <gtest/gtest.h>

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

  at::Tensor indices() const {
    const auto rng = at::tensor(std::vector<int64_t>{7, 3}, at::kLong);
    return ops::sample_codes(x, codebook, rng, temperature, metric, stream);
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
  draw.x = at::zeros({1, 0, 3});
  draw.expect_cpu_draws();
}

TEST(CudaSampleCodes, OneLaunchForABlockOfTokens) {
  const Draw draw{at::randn({2, 6, 3}), at::randn({2, 7, 3})};
  const auto before = cuda_shim::launches();
  emulated({}, [&] { return draw.indices(); });
  EXPECT_EQ(cuda_shim::launches() - before, 2);
}

}  // namespace
}  // namespace torchvq::cuda_sample_codes_test
