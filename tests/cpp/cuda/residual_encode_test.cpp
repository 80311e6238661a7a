// residual_encode for CUDA, emulated, against the CPU's: indices and sums, every bit.
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/residual_encode.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_residual_encode_test {
namespace {

using cuda_shim::Accumulation;
using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

struct Stack {
  at::Tensor x;
  std::vector<at::Tensor> codebooks;
  ops::ResidualEncodeOptions options;

  Stack(int64_t heads, int64_t tokens, int64_t dim, std::vector<int64_t> sizes,
        at::ScalarType dtype = at::kFloat)
      : x(at::randn({heads, tokens, dim}).to(dtype)) {
    for (const auto size : sizes) codebooks.push_back(at::randn({heads, size, dim}).to(dtype));
  }

  void expect_cpu_bits() const {
    const auto expected = ops::residual_encode(x, codebooks, options);
    const cuda_shim::Settings all[] = {
        {.accumulation = Accumulation::kTruncate},
        {.accumulation = Accumulation::kWorst, .order = Order::kShuffled}};
    for (const auto& settings : all) {
      const auto actual =
          emulated(settings, [&] { return ops::residual_encode(x, codebooks, options); });
      expect_same(actual.indices, expected.indices);
      expect_same(actual.quantized, expected.quantized);
    }
  }
};

TEST(CudaResidualEncode, EveryTypeMetricAndWidth) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const std::string metric : {"euclidean", "cosine"}) {
      for (const int64_t dim : {3, 24}) {
        Stack stack(2, 33, dim, {20, 7, 1}, dtype);
        stack.options.metric(metric);
        stack.expect_cpu_bits();
      }
    }
  }
}

TEST(CudaResidualEncode, Ties) {
  at::manual_seed(2);
  for (const int64_t dim : {4, 20}) {
    Stack stack(1, 60, dim, {1, 1, 1});
    stack.x = at::randint(-2, 3, {1, 60, dim}).to(at::kFloat);
    for (auto& codebook : stack.codebooks) {
      codebook = at::randint(-1, 2, {1, 40, dim}).to(at::kFloat);
    }
    stack.expect_cpu_bits();
  }
}

TEST(CudaResidualEncode, MasksAndDepth) {
  at::manual_seed(3);
  Stack stack(2, 40, 18, {9, 9, 9});
  stack.options.mask(at::rand({2, 40}).lt(0.5));
  stack.expect_cpu_bits();
  stack.options.depth(at::full({}, 2, at::kLong));
  stack.expect_cpu_bits();
  stack.options.mask(at::zeros({2, 40}, at::kBool));
  stack.expect_cpu_bits();
}

TEST(CudaResidualEncode, RowsAndCodesThatAreNotFinite) {
  at::manual_seed(4);
  Stack stack(1, 20, 6, {5, 5});
  stack.x[0][3][2] = std::numeric_limits<float>::infinity();
  stack.x[0][4][0] = std::numeric_limits<float>::quiet_NaN();
  stack.codebooks[1][0][2][1] = std::numeric_limits<float>::quiet_NaN();
  stack.expect_cpu_bits();
  // What the first level leaves is beyond float32.
  stack.x[0][7].fill_(3e38);
  stack.codebooks[0].fill_(-3e38);
  stack.expect_cpu_bits();
}

TEST(CudaResidualEncode, SharedCodebooksAndNoTokens) {
  at::manual_seed(5);
  Stack stack(2, 30, 20, {16});
  stack.codebooks.resize(3, stack.codebooks[0]);
  stack.expect_cpu_bits();
  stack.x = stack.x.narrow(1, 0, 0);
  stack.expect_cpu_bits();
}

TEST(CudaResidualEncode, FaultsAreSeen) {
  constexpr int kNoBound = 1;  // of the search
  at::manual_seed(6);
  for (const int64_t dim : {8, 64}) {
    Stack stack(1, 300, dim, {300, 20});
    // Beside the middle of two codes that are neighbours, some nearer than float32 can tell.
    const auto& codes = stack.codebooks[0];
    const auto first = codes.index_select(1, at::randint(300, {300}, at::kLong));
    const auto second_nearest =
        ops::nearest_code(first, codes, ops::NearestCodeOptions().topk(2)).indices.select(2, 1);
    const auto second = ops::lookup_codes(codes, second_nearest);
    const auto aside = at::pow(10, at::arange(300).remainder(8).to(at::kDouble).neg_().sub_(1));
    stack.x = ((first + second) / 2 + (first - second) * aside.unsqueeze(-1)).to(at::kFloat);
    const auto expected = ops::residual_encode(stack.x, stack.codebooks).indices;
    const auto found = emulated({.accumulation = Accumulation::kWorst, .fault = kNoBound}, [&] {
      return ops::residual_encode(stack.x, stack.codebooks).indices;
    });
    EXPECT_FALSE(found.equal(expected)) << "a bound of 0, dim " << dim;
  }
}

}  // namespace
}  // namespace torchvq::cuda_residual_encode_test
