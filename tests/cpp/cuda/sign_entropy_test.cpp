// sign_entropy for CUDA, emulated, against the CPU's: every bit of the sums, entropies and
// gradients.
#include <torchvq/ops/sign_entropy.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_sign_entropy_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

constexpr auto kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kNaN = std::numeric_limits<double>::quiet_NaN();

struct Signs {
  at::Tensor x;
  double sharpness = 1.5;
  std::optional<at::Tensor> mask, totals;

  std::vector<at::Tensor> all() const {
    const auto sums = ops::sign_entropy_totals(x, sharpness, mask);
    const auto [per_sample, batch, grad_per_sample, grad_batch] =
        ops::sign_entropy_forward(x, sharpness, mask, totals, true);
    const auto plain = ops::sign_entropy_forward(x, sharpness, mask, totals, false);
    return {sums,
            per_sample,
            batch,
            grad_per_sample,
            grad_batch,
            std::get<0>(plain),
            std::get<1>(plain)};
  }

  void expect_cpu_bits() const {
    const auto expected = all();
    for (const auto order : {Order::kForward, Order::kShuffled}) {
      const auto actual = emulated({.order = order}, [&] { return all(); });
      for (size_t i = 0; i < actual.size(); ++i) expect_same(actual[i], expected[i]);
    }
  }
};

TEST(CudaSignEntropy, EveryWidth) {
  at::manual_seed(1);
  for (const int64_t bits : {1, 2, 3, 5, 8, 11, 13}) {
    Signs{at::randn({1, 40, bits})}.expect_cpu_bits();
  }
}

TEST(CudaSignEntropy, BlocksOfTokens) {
  at::manual_seed(2);
  for (const int64_t tokens : {1, 255, 256, 257, 700}) {
    Signs{at::randn({1, tokens, 4})}.expect_cpu_bits();
  }
}

TEST(CudaSignEntropy, HeadsTypesAndSharpness) {
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    Signs{at::randn({3, 20, 6}).to(dtype), 0.3}.expect_cpu_bits();
    Signs{at::randn({2, 20, 5}).to(dtype), 40.0}.expect_cpu_bits();
    Signs{at::randn({2, 20, 5}).to(dtype), 0.0}.expect_cpu_bits();
  }
}

TEST(CudaSignEntropy, Masks) {
  at::manual_seed(4);
  Signs signs{at::randn({2, 600, 5})};
  signs.mask = at::rand({2, 600}).lt(0.6);
  signs.x.masked_fill_(signs.mask->logical_not().unsqueeze(-1), kNaN);
  signs.expect_cpu_bits();
  signs.mask = at::rand({600}).lt(0.3);
  signs.x = at::randn({2, 600, 5});
  signs.expect_cpu_bits();
  signs.mask = at::ones({2, 600}, at::kBool);
  signs.mask->select(0, 1).zero_();
  signs.expect_cpu_bits();
  signs.mask = at::zeros({600}, at::kBool);
  signs.expect_cpu_bits();
}

TEST(CudaSignEntropy, NumbersThatAreNone) {
  at::manual_seed(5);
  Signs signs{at::randn({2, 30, 4})};
  signs.x[0][3][2] = kInfinity;
  signs.x[0][4][1] = -kInfinity;
  signs.x[0][5].zero_();
  signs.x[0][6].fill_(300);
  signs.expect_cpu_bits();
  signs.x[1][7][0] = kNaN;
  signs.expect_cpu_bits();
}

TEST(CudaSignEntropy, NoTokensAndNoHeads) {
  Signs{at::zeros({2, 0, 4})}.expect_cpu_bits();
  Signs{at::zeros({0, 3, 4})}.expect_cpu_bits();
}

TEST(CudaSignEntropy, TotalsOfAllRanks) {
  at::manual_seed(6);
  Signs signs{at::randn({2, 30, 5})};
  const auto others = ops::sign_entropy_totals(at::randn({2, 50, 5}), 1.5);
  signs.totals = ops::sign_entropy_totals(signs.x, 1.5) + others;
  signs.expect_cpu_bits();
  // No tokens on this rank, some on others.
  signs.x = signs.x.narrow(1, 0, 0);
  signs.totals = others;
  signs.expect_cpu_bits();
}

TEST(CudaSignEntropy, GroupsOfBits) {
  at::manual_seed(7);
  // 26 bits are two groups of 13.
  Signs{at::randn({1, 3, 26})}.expect_cpu_bits();
}

TEST(CudaSignEntropy, DoubleTakesTheAnyDeviceRoad) {
  const auto x = at::randn({1, 3, 4});
  const auto launches = [&](const at::Tensor& tokens) {
    const auto before = cuda_shim::launches();
    emulated({}, [&] { return ops::sign_entropy_forward(tokens, 1, {}, {}, true); });
    return cuda_shim::launches() - before;
  };
  EXPECT_GT(launches(x), 0);
  EXPECT_EQ(launches(x.to(at::kDouble)), 0);
}

}  // namespace
}  // namespace torchvq::cuda_sign_entropy_test
