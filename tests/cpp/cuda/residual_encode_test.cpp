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
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_residual_encode_test {
namespace {

using cuda_shim::Accumulation;
using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

// Launches of a search that stays on chip: four for the codes, and one for all levels of all rows.
constexpr int64_t kOnChip = 5;
constexpr int kLeastShared = 99 * 1024;  // of a block; the larger cards have more
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Stack {
  at::Tensor x;
  std::vector<at::Tensor> codebooks;
  ops::ResidualEncodeOptions options;

  Stack(int64_t heads, int64_t tokens, int64_t dim, std::vector<int64_t> sizes,
        at::ScalarType dtype = at::kFloat)
      : x(at::randn({heads, tokens, dim}).to(dtype)) {
    for (const auto size : sizes) codebooks.push_back(at::randn({heads, size, dim}).to(dtype));
  }

  /// The number of launches; 0 if it differs between orders of threads and roundings.
  int64_t expect_cpu_bits(int shared = kLeastShared) const {
    const auto expected = ops::residual_encode(x, codebooks, options);
    const cuda_shim::Settings all[] = {
        {.accumulation = Accumulation::kTruncate, .shared = shared},
        {.accumulation = Accumulation::kNearest, .order = Order::kBackward, .shared = shared},
        {.accumulation = Accumulation::kWorst, .order = Order::kShuffled, .shared = shared}};
    std::vector<int64_t> launches;
    for (const auto& settings : all) {
      const auto before = cuda_shim::launches();
      const auto actual =
          emulated(settings, [&] { return ops::residual_encode(x, codebooks, options); });
      launches.push_back(cuda_shim::launches() - before);
      expect_same(actual.indices, expected.indices);
      expect_same(actual.quantized, expected.quantized);
    }
    return launches == std::vector<int64_t>(3, launches[0]) ? launches[0] : 0;
  }
  void expect_cpu_bits_on_chip() const { EXPECT_EQ(expect_cpu_bits(), kOnChip); }
};

TEST(CudaResidualEncode, HeadsShareAllCodebooksOrSome) {
  at::manual_seed(9);
  Stack stack(3, 33, 24, {20, 7, 5});
  stack.options.mask(at::rand({3, 33}).gt(0.3));
  stack.codebooks[0] = stack.codebooks[0][0];
  stack.codebooks[2] = stack.codebooks[2].narrow(0, 0, 1);
  stack.expect_cpu_bits_on_chip();
  stack.codebooks[1] = stack.codebooks[1][2];
  stack.expect_cpu_bits_on_chip();
}

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
  // The residual of the first level overflows float32.
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

TEST(CudaResidualEncode, LaunchesDoNotGrowWithLevels) {
  at::manual_seed(7);
  Stack stack(2, 7, 24, std::vector<int64_t>(8, 10));
  EXPECT_EQ(stack.expect_cpu_bits(), kOnChip);
  EXPECT_EQ(stack.expect_cpu_bits(0), 2 * (1 + 8 * 4)) << "level after level, a head at a time";
  stack.options.metric("cosine");
  EXPECT_EQ(stack.expect_cpu_bits(), kOnChip);
  EXPECT_EQ(stack.expect_cpu_bits(0), 2 * (1 + 8 * 6));
}

TEST(CudaResidualEncode, TilesOfEveryHeight) {
  at::manual_seed(8);
  for (const std::string metric : {"euclidean", "cosine"}) {
    // Tiles of 64, 32 and 16 rows: as many as fit 99 KiB and leave a tile for each processor.
    for (const auto& [tokens, dim] : {std::pair{130, 33}, {67, 201}, {20, 500}}) {
      Stack stack(1, tokens, dim, {130, 3});
      stack.options.metric(metric);
      stack.expect_cpu_bits_on_chip();
    }
    Stack stack(3, 17, 20, {129, 128, 1});
    stack.options.metric(metric);
    stack.expect_cpu_bits_on_chip();
    stack.x = stack.x.narrow(1, 0, 1);
    stack.expect_cpu_bits_on_chip();
  }
}

TEST(CudaResidualEncode, WhatDoesNotFitGoesLevelByLevel) {
  at::manual_seed(9);
  Stack wide(1, 3, 700, {6, 4});
  EXPECT_GT(wide.expect_cpu_bits(), kOnChip);
  EXPECT_EQ(wide.expect_cpu_bits(163 * 1024), kOnChip);
  EXPECT_GT(Stack(1, 20, 24, {9, 9}, at::kDouble).expect_cpu_bits(), kOnChip);
  Stack(1, 5, 24, std::vector<int64_t>(32, 5)).expect_cpu_bits_on_chip();
  EXPECT_GT(Stack(1, 5, 24, std::vector<int64_t>(33, 5)).expect_cpu_bits(), kOnChip);
}

TEST(CudaResidualEncode, FewDimensionsOnChip) {
  at::manual_seed(15);
  for (const std::string metric : {"euclidean", "cosine"}) {
    // Up to 16 dimensions, rows and codes are compared in float32: groups of four, and remainders.
    for (const int64_t dim : {1, 2, 3, 4, 7, 8, 13, 16, 17}) {
      Stack stack(2, 67, dim, {130, 33, 1});
      stack.options.metric(metric);
      stack.x[0][5].fill_(0);
      stack.x[1][6][dim - 1] = kNan;
      stack.codebooks[1][0][2][0] = kInfinity;
      stack.expect_cpu_bits_on_chip();
      // Far from zero, where only centring separates the scores; and each code three times.
      stack.x.add_(1000);
      stack.codebooks[0] = stack.codebooks[0].add(1000).repeat({1, 3, 1});
      stack.expect_cpu_bits_on_chip();
      stack.x = stack.x.narrow(1, 0, 1);
      stack.expect_cpu_bits_on_chip();
    }
  }
}

TEST(CudaResidualEncode, MasksAndUnusedLevelsOnChip) {
  at::manual_seed(10);
  Stack stack(2, 70, 24, {9, 300, 9});
  stack.x[0][5][3] = kInfinity;
  stack.x[1][7][0] = kNan;
  stack.options.mask(at::rand({2, 70}).lt(0.5));
  stack.expect_cpu_bits_on_chip();
  stack.options.depth(at::full({}, 1, at::kLong));
  stack.expect_cpu_bits_on_chip();
  stack.options.mask(at::zeros({2, 70}, at::kBool));
  stack.expect_cpu_bits_on_chip();
}

TEST(CudaResidualEncode, EqualCodesOnChip) {
  at::manual_seed(11);
  for (const std::string metric : {"euclidean", "cosine"}) {
    Stack stack(1, 140, 20, {1, 1, 1});
    stack.options.metric(metric);
    stack.x = at::randint(-2, 3, {1, 140, 20}).to(at::kFloat);
    // Exact ties everywhere; then each code twice; then more equal codes than are listed; one code.
    stack.codebooks[0] = at::randint(-1, 2, {1, 60, 20}).to(at::kFloat);
    stack.codebooks[1] = at::randn({1, 100, 20}).repeat({1, 2, 1});
    stack.codebooks[2] = at::randn({1, 3, 20}).repeat({1, 50, 1});
    stack.expect_cpu_bits_on_chip();
    stack.codebooks[0] = at::randn({1, 1, 20}).repeat({1, 200, 1});
    stack.codebooks[1] = at::zeros({1, 40, 20});
    stack.expect_cpu_bits_on_chip();
  }
}

TEST(CudaResidualEncode, NotFiniteOnChip) {
  at::manual_seed(12);
  for (const std::string metric : {"euclidean", "cosine"}) {
    Stack stack(1, 70, 24, {30, 5, 140});
    stack.options.metric(metric);
    stack.x[0][3][2] = kInfinity;
    stack.x[0][4][0] = kNan;
    stack.x[0][5].fill_(0);
    stack.codebooks[1][0][2][1] = kNan;
    stack.codebooks[2][0][7][23] = -kInfinity;
    stack.expect_cpu_bits_on_chip();
    stack.codebooks[1].fill_(kNan);
    stack.expect_cpu_bits_on_chip();
    // The residual of the first level overflows float32.
    stack.x[0][7].fill_(3e38);
    stack.codebooks[0].fill_(-3e38);
    stack.expect_cpu_bits_on_chip();
  }
}

TEST(CudaResidualEncode, TinyAndHugeNumbersOnChip) {
  at::manual_seed(13);
  const auto scales = at::pow(10, at::arange(-40, 36, 4).to(at::kFloat)).unsqueeze(-1);
  for (const int64_t dim : {6, 24}) {
    for (const double size : {1.0, 1e-25, 1e25}) {
      Stack stack(1, 19, dim, {30, 19});
      stack.x = stack.x * scales;
      stack.codebooks[0] = stack.codebooks[0] * size;
      stack.codebooks[1] = stack.codebooks[1] * scales;
      stack.expect_cpu_bits_on_chip();
    }
  }
}

TEST(CudaResidualEncode, SharedCodebooksOnChip) {
  at::manual_seed(14);
  Stack stack(2, 30, 20, {16, 16});
  stack.codebooks.resize(5, stack.codebooks[0]);
  stack.expect_cpu_bits_on_chip();
  // A slice of a codebook that starts at the same address as the whole.
  Stack part(1, 30, 20, {16});
  part.codebooks.push_back(part.codebooks[0].narrow(1, 0, 5));
  part.expect_cpu_bits_on_chip();
}

/// Rows near the midpoint of two neighbouring codes, some too close for float32.
at::Tensor close_calls(const at::Tensor& codes) {
  const int64_t count = codes.size(1);
  const auto first = codes.index_select(1, at::randint(count, {count}, at::kLong));
  const auto second_nearest =
      ops::nearest_code(first, codes, ops::NearestCodeOptions().topk(2)).indices.select(2, 1);
  const auto second = ops::lookup_codes(codes, second_nearest);
  const auto aside = at::pow(10, at::arange(count).remainder(8).to(at::kDouble).neg_().sub_(1));
  return ((first + second) / 2 + (first - second) * aside.unsqueeze(-1)).to(at::kFloat);
}

TEST(CudaResidualEncode, FaultsAreSeen) {
  constexpr int kNoBound = 1, kNoRunnerUp = 2;  // faults of the search
  at::manual_seed(6);
  for (const std::string metric : {"euclidean", "cosine"}) {
    for (const int64_t dim : {8, 64}) {
      Stack stack(1, 1, dim, {300, 20});
      stack.options.metric(metric);
      // Codes with adjacent indices are close, so that one thread has the winner and the runner-up.
      stack.codebooks[0] = stack.codebooks[0].repeat_interleave(2, 1);
      stack.codebooks[0].add_(at::randn_like(stack.codebooks[0]), 0.1);
      // With unit vectors, both metrics have the same neighbours.
      auto& codes = stack.codebooks[0];
      if (metric == "cosine") codes = codes / codes.norm(2, {-1}, true);
      stack.x = close_calls(codes);
      stack.expect_cpu_bits();
      const auto expected = ops::residual_encode(stack.x, stack.codebooks, stack.options).indices;
      for (const int fault : {kNoBound, kNoRunnerUp}) {
        const auto found = emulated({.accumulation = Accumulation::kWorst, .fault = fault}, [&] {
          return ops::residual_encode(stack.x, stack.codebooks, stack.options).indices;
        });
        EXPECT_FALSE(found.equal(expected)) << metric << ", fault " << fault << ", dim " << dim;
      }
    }
  }
}

}  // namespace
}  // namespace torchvq::cuda_residual_encode_test
