// nearest_code for CUDA, emulated, against the CPU's: the same bits of indices, codes and distances
// for any rounding of the tensor cores and any order of threads.
#include <torchvq/ops/nearest_code.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_nearest_code_test {
namespace {

using cuda_shim::Accumulation;
using cuda_shim::Order;
using cuda_shim::Settings;
using ops::NearestCodeOptions;
using testing_cuda::emulated;
using testing_cuda::expect_same;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A card of capability 9 has products of groups of four warps, and more shared memory.
constexpr int kSharedOfNine = 227 * 1024;
const Settings kRoundings[] = {{Accumulation::kNearest, Order::kForward},
                               {Accumulation::kTruncate, Order::kShuffled},
                               {Accumulation::kWorst, Order::kBackward},
                               {Accumulation::kNearest, Order::kBackward, 0, 9, kSharedOfNine},
                               {Accumulation::kTruncate, Order::kShuffled, 0, 9, kSharedOfNine},
                               {Accumulation::kWorst, Order::kForward, 0, 9, kSharedOfNine}};

NearestCodeOptions everything() {
  return NearestCodeOptions().return_codes(true).return_distances(true);
}

void expect_cpu_bits(const at::Tensor& x, const at::Tensor& codebook,
                     const NearestCodeOptions& options = everything()) {
  const auto expected = ops::nearest_code(x, codebook, options);
  for (const auto& settings : kRoundings) {
    const auto actual = emulated(settings, [&] { return ops::nearest_code(x, codebook, options); });
    expect_same(actual.indices, expected.indices);
    expect_same(actual.codes, expected.codes);
    expect_same(actual.distances, expected.distances);
  }
}

/// Rows near the midpoint of two neighbouring codes, some too close for float32.
at::Tensor close_calls(const at::Tensor& codebook, int64_t count) {
  const auto chosen = at::randint(codebook.size(0), {count}, at::kLong);
  const auto first = codebook.index_select(0, chosen);
  const auto neighbours =
      ops::nearest_code(first, codebook, NearestCodeOptions().topk(2)).indices.select(1, 1);
  const auto second = codebook.index_select(0, neighbours);
  const auto aside = at::pow(10, at::arange(count).remainder(8).to(at::kDouble).neg_().sub_(1));
  return ((first + second) / 2 + (first - second) * aside.unsqueeze(-1)).to(at::kFloat);
}

TEST(CudaNearestCode, ShapesOfEveryTile) {
  at::manual_seed(1);
  for (const int64_t dim : {1, 8, 16, 17, 32, 33, 96})
    expect_cpu_bits(at::randn({70, dim}), at::randn({131, dim}));
  expect_cpu_bits(at::randn({129, 40}), at::randn({300, 40}));
  expect_cpu_bits(at::randn({100, 40}), at::randn({600, 40}));
  expect_cpu_bits(at::randn({1, 24}), at::randn({1, 24}));
  expect_cpu_bits(at::randn({0, 24}), at::randn({3, 24}));
  expect_cpu_bits(at::randn({9, 300}), at::randn({5, 300}));
}

TEST(CudaNearestCode, CloseCalls) {
  at::manual_seed(2);
  for (const int64_t dim : {4, 24, 64}) {
    for (const double offset : {0.0, 50.0}) {
      const auto codebook = at::randn({200, dim}) + offset;
      expect_cpu_bits(close_calls(codebook, 130), codebook);
    }
  }
}

TEST(CudaNearestCode, CodesThatBlocksShare) {
  at::manual_seed(13);
  const auto codebook = at::randn({2100, 20});
  expect_cpu_bits(close_calls(codebook, 40), codebook);
  const auto wide = at::randn({60, 400});
  expect_cpu_bits(close_calls(wide, 100), wide);
  expect_cpu_bits(codebook.slice(0, 0, 10),
                  codebook.index_select(0, at::arange(2100).remainder(1050)));
}

TEST(CudaNearestCode, TiesGoToTheLowestIndex) {
  at::manual_seed(3);
  const auto few = at::randn({6, 32});
  const auto codebook = few.index_select(0, at::randint(6, {180}, at::kLong));
  expect_cpu_bits(at::randn({40, 32}), codebook);
  expect_cpu_bits(at::randint(-2, 3, {60, 20}, at::kFloat),
                  at::randint(-2, 3, {150, 20}, at::kFloat));
  expect_cpu_bits(at::zeros({5, 24}), at::zeros({7, 24}));
}

TEST(CudaNearestCode, NumbersThatAreNotFinite) {
  at::manual_seed(4);
  for (const int64_t dim : {8, 40}) {
    auto x = at::randn({20, dim}), codebook = at::randn({50, dim});
    x[2][1] = kNan;
    x[3][dim - 1] = -kInfinity;
    codebook[0][0] = kNan;
    codebook[7][3] = kInfinity;
    expect_cpu_bits(x, codebook);
    expect_cpu_bits(x, codebook, everything().metric("cosine"));
    expect_cpu_bits(x, codebook.fill_(kNan));
  }
}

TEST(CudaNearestCode, TinyAndHugeNumbers) {
  at::manual_seed(5);
  for (const int64_t dim : {8, 40}) {
    const auto scales = at::arange(-40, 36, 4).to(at::kFloat).unsqueeze(-1);
    const auto x = at::randn({19, dim}) * at::pow(10, scales);
    const auto codebook = at::randn({19, dim}) * at::pow(10, scales);
    expect_cpu_bits(x, at::randn({30, dim}));
    expect_cpu_bits(x, codebook);
    expect_cpu_bits(x, at::randn({30, dim}) * 1e-25);
    expect_cpu_bits(x * 1e-30, at::randn({30, dim}) * 1e-38);
    expect_cpu_bits(at::randn({19, dim}), at::randn({30, dim}) * 1e25);
  }
}

TEST(CudaNearestCode, Cosine) {
  at::manual_seed(6);
  for (const int64_t dim : {6, 32, 50}) {
    const auto codebook = at::randn({90, dim});
    const auto options = everything().metric("cosine");
    expect_cpu_bits(at::randn({60, dim}), codebook, options);
    expect_cpu_bits(close_calls(codebook, 60), codebook, options);
    expect_cpu_bits(at::zeros({3, dim}), codebook, options);
  }
}

TEST(CudaNearestCode, BiasAndHeads) {
  at::manual_seed(7);
  for (const int64_t dim : {10, 36}) {
    const auto x = at::randn({3, 40, dim});
    auto bias = at::randn({3, 60});
    expect_cpu_bits(x, at::randn({60, dim}));
    expect_cpu_bits(x, at::randn({3, 60, dim}));
    expect_cpu_bits(x, at::randn({3, 60, dim}), everything().bias(bias));
    expect_cpu_bits(x, at::randn({1, 60, dim}), everything().bias(bias).metric("cosine"));
    bias[1][3] = kInfinity;
    bias[2][4] = 1e37f;
    expect_cpu_bits(x, at::randn({3, 60, dim}), everything().bias(bias));
  }
}

TEST(CudaNearestCode, Types) {
  at::manual_seed(8);
  const auto x = at::randn({50, 24}), codebook = at::randn({80, 24});
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    expect_cpu_bits(x.to(dtype), codebook.to(dtype));
    expect_cpu_bits(x.to(dtype), codebook);
  }
  for (const auto metric : {"euclidean", "cosine"}) {
    auto wide = x.to(at::kDouble);
    wide[3][0] = kNan;
    expect_cpu_bits(wide, codebook.to(at::kDouble), everything().metric(metric));
    expect_cpu_bits(wide * 1e170, codebook.to(at::kDouble) * 1e170, everything().metric(metric));
  }
  expect_cpu_bits(x.to(at::kDouble), codebook, everything().bias(at::randn({80})));
}

TEST(CudaNearestCode, Strides) {
  at::manual_seed(9);
  expect_cpu_bits(at::randn({24, 60}).t(), at::randn({24, 90}).t());
}

TEST(CudaNearestCode, KBest) {
  at::manual_seed(10);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf}) {
    for (const auto metric : {"euclidean", "cosine"}) {
      for (const int64_t k : {2, 9}) {
        const auto x = at::randn({7, 24}).to(dtype), codebook = at::randn({30, 24}).to(dtype);
        const auto before = cuda_shim::launches();
        expect_cpu_bits(x, codebook, everything().metric(metric).topk(k));
        expect_cpu_bits(x, codebook, everything().metric(metric).topk(k).bias(at::randn({30})));
        EXPECT_GT(cuda_shim::launches(), before);
      }
    }
  }
  const auto x = at::randn({2, 9, 3}), codebook = at::randn({2, 70, 3});
  expect_cpu_bits(x, codebook, everything().topk(5));
  expect_cpu_bits(at::randn({0, 3}), codebook[0], everything().topk(5));
}

TEST(CudaNearestCode, KBestTiesAndWhatIsNotFinite) {
  at::manual_seed(11);
  auto x = at::randint(-2, 3, {9, 3}).to(at::kFloat);
  auto codebook = at::randint(-2, 3, {50, 3}).to(at::kFloat);
  for (const int64_t k : {2, 50}) expect_cpu_bits(x, codebook, everything().topk(k));
  x[3][1] = std::numeric_limits<float>::quiet_NaN();
  codebook.slice(0, 5, 40).fill_(std::numeric_limits<float>::infinity());
  codebook[41].fill_(1e30);
  for (const int64_t k : {2, 20}) expect_cpu_bits(x, codebook, everything().topk(k));
  const auto near = at::randn({20, 3}) * 1e-5 + 1000;
  for (const int64_t k : {9}) expect_cpu_bits(near, near, everything().topk(k));
}

TEST(CudaNearestCode, OldDevicesHaveTheAnyDeviceKernel) {
  at::manual_seed(12);
  const auto x = at::randn({20, 24}), codebook = at::randn({30, 24});
  const auto options = everything().metric("cosine").bias(at::randn({30}));
  const auto before = cuda_shim::launches();
  const auto actual =
      emulated({.capability = 7}, [&] { return ops::nearest_code(x, codebook, options); });
  EXPECT_EQ(cuda_shim::launches(), before);
  expect_same(actual.indices, ops::nearest_code(x, codebook, options).indices);
}

/// The number of rows that are wrong when the search has a fault.
int64_t wrong_rows(const at::Tensor& x, const at::Tensor& codebook, int fault, Settings settings) {
  const auto expected = ops::nearest_code(x, codebook).indices;
  settings.fault = fault;
  const auto actual = emulated(settings, [&] { return ops::nearest_code(x, codebook).indices; });
  return actual.ne(expected).sum().item<int64_t>();
}

TEST(CudaNearestCode, FaultsAreSeen) {
  at::manual_seed(11);
  for (const int64_t dim : {8, 64}) {
    const auto codebook = at::randn({300, dim});
    const auto x = close_calls(codebook, 300);
    for (auto settings : kRoundings) {
      if (settings.accumulation == Accumulation::kTruncate) continue;
      EXPECT_EQ(wrong_rows(x, codebook, 0, settings), 0);
      EXPECT_GT(wrong_rows(x, codebook, 1, settings), 0) << "a bound of 0, dim " << dim;
      EXPECT_GT(wrong_rows(x, codebook, 2, settings), 0) << "no runner-up, dim " << dim;
    }
  }
}

}  // namespace
}  // namespace torchvq::cuda_nearest_code_test
