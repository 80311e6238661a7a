// code_statistics for CUDA, emulated, against the CPU's: integer sums, so every bit.
#include <torchvq/ops/code_statistics.h>

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_code_statistics_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

struct Tokens {
  at::Tensor x, indices, exponents;
  std::optional<at::Tensor> mask;

  auto statistics() const { return ops::code_statistics(x, indices, exponents, mask); }
};

Tokens some_tokens(int64_t heads, int64_t tokens, int64_t dim, int64_t size, at::ScalarType dtype) {
  Tokens made;
  made.x = at::randn({heads, tokens, dim}).to(dtype);
  made.indices = at::randint(-1, size, {heads, tokens}, at::kLong);
  made.exponents = at::randint(-3, 4, {heads, size}, at::kInt);
  return made;
}

void expect_cpu_bits(const Tokens& tokens) {
  const auto expected = tokens.statistics();
  for (const auto order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    const auto actual = emulated({.order = order}, [&] { return tokens.statistics(); });
    expect_same(std::get<0>(actual), std::get<0>(expected));
    expect_same(std::get<1>(actual), std::get<1>(expected));
    expect_same(std::get<2>(actual), std::get<2>(expected));
  }
}

TEST(CudaCodeStatistics, EveryTypeAndShape) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    expect_cpu_bits(some_tokens(1, 70, 33, 5, dtype));
    expect_cpu_bits(some_tokens(3, 20, 64, 9, dtype));
    expect_cpu_bits(some_tokens(2, 1, 1, 1, dtype));
  }
  expect_cpu_bits(some_tokens(2, 40, 7, 3, at::kFloat8_e4m3fn));
}

TEST(CudaCodeStatistics, MasksAndRowsThatAreNotFinite) {
  at::manual_seed(2);
  auto tokens = some_tokens(2, 50, 12, 4, at::kFloat);
  tokens.mask = at::rand({2, 50}).lt(0.7);
  tokens.x[0][3][2] = std::numeric_limits<float>::infinity();
  tokens.x[1][7][11] = std::numeric_limits<float>::quiet_NaN();
  expect_cpu_bits(tokens);
  tokens.mask = at::zeros({2, 50}, at::kBool);
  expect_cpu_bits(tokens);
}

TEST(CudaCodeStatistics, ExponentsAreRaised) {
  at::manual_seed(3);
  auto tokens = some_tokens(1, 60, 8, 6, at::kFloat);
  tokens.x[0][10].mul_(1e20);
  tokens.x[0][11].mul_(1e-30);
  tokens.exponents.fill_(-900);
  expect_cpu_bits(tokens);
  tokens.x = tokens.x.to(at::kDouble).mul_(1e200);
  expect_cpu_bits(tokens);
}

TEST(CudaCodeStatistics, NoTokensAndOtherStrides) {
  expect_cpu_bits(some_tokens(2, 0, 4, 3, at::kFloat));
  at::manual_seed(4);
  auto tokens = some_tokens(2, 30, 6, 3, at::kFloat);
  tokens.x = at::randn({6, 30, 2}).permute({2, 1, 0});
  tokens.indices = tokens.indices.t().contiguous().t();
  expect_cpu_bits(tokens);
}

TEST(CudaCodeStatistics, IndexThatIsNoCode) {
  auto tokens = some_tokens(1, 4, 2, 3, at::kFloat);
  tokens.indices[0][1] = 3;
  EXPECT_THROW(emulated({}, [&] { return tokens.statistics(); }), c10::Error);
}

}  // namespace
}  // namespace torchvq::cuda_code_statistics_test
