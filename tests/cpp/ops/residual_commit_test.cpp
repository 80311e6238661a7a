// residual_commit against loops over tokens and levels.
#include <torchvq/ops/residual_commit.h>

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <torchvq/ops/rotation_trick.h>

#include "expect_throw.h"

namespace torchvq::residual_commit_test {
namespace {

using testing::expect_throw_with;

constexpr int64_t kTokens = 9, kDim = 3;

struct Stack {
  at::Tensor x = at::randn({1, kTokens, kDim});
  std::vector<at::Tensor> codebooks = {at::randn({1, 5, kDim}), at::randn({1, 4, kDim})};
  at::Tensor indices = at::randint(4, {1, kTokens, 2}, at::kLong);

  float code(int64_t level, int64_t token, int64_t d) const {
    const auto index = indices[0][token][level].item<int64_t>();
    return codebooks[static_cast<size_t>(level)][0][index][d].item<float>();
  }
};

Stack make_stack() {
  at::manual_seed(0);
  return {};
}

TEST(ResidualCommitTest, EachLevelLeavesTheRest) {
  const auto stack = make_stack();
  const auto found = ops::residual_commit(stack.x, stack.codebooks, stack.indices);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < kDim; ++d) {
      float left = stack.x[0][t][d].item<float>(), total = 0;
      for (int64_t level = 0; level < 2; ++level) {
        const float code = stack.code(level, t, d);
        left -= code;
        total += code;
        EXPECT_EQ(found.residuals[level][0][t][d].item<float>(), left);
      }
      EXPECT_EQ(found.quantized[0][t][d].item<float>(), total);
    }
  }
}

TEST(ResidualCommitTest, ATokenThatIsNotFiniteHasNoCode) {
  const auto stack = make_stack();
  stack.x[0][2][1] = std::numeric_limits<float>::infinity();
  const auto found = ops::residual_commit(stack.x, stack.codebooks, stack.indices);
  EXPECT_TRUE(found.quantized[0][2].isnan().all().item<bool>());
  EXPECT_EQ(found.quantized.isnan().sum().item<int64_t>(), kDim);
  EXPECT_TRUE(found.losses.isnan().all().item<bool>());
}

TEST(ResidualCommitTest, AnIndexOutsideTheCodebookIsRefused) {
  const auto stack = make_stack();
  stack.indices[0][8][1] = 4;
  expect_throw_with<c10::IndexError>(
      [&] { ops::residual_commit(stack.x, stack.codebooks, stack.indices); },
      "residual_commit: expected indices to be in [0, 4), but got 4");
}

TEST(ResidualCommitTest, LossesAndGradientAreThoseOfTheFormula) {
  const auto stack = make_stack();
  const auto x = stack.x.clone().requires_grad_();
  const double gain = 3;
  const auto found = ops::residual_commit(x, stack.codebooks, stack.indices, std::nullopt,
                                          "straight_through", gain);
  const auto weights = at::tensor({0.5F, 3.0F}), upstream = at::randn_like(x);
  const auto ends = {found.losses.mul(weights).sum(), found.quantized.mul(upstream).sum()};
  const auto grad = torch::autograd::grad(ends, {x})[0];
  const double values = kTokens * kDim;
  for (int64_t level = 0; level < 2; ++level) {
    const double total = found.residuals[level].to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(found.losses[level].item<double>(), total / values, 1e-6);
  }
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < kDim; ++d) {
      double wanted = 0;
      for (int64_t level = 0; level < 2; ++level) {
        wanted += weights[level].item<double>() * 2 *
                  found.residuals[level][0][t][d].item<double>() / values;
      }
      wanted = wanted / gain + upstream[0][t][d].item<double>();
      EXPECT_NEAR(grad[0][t][d].item<double>(), wanted, 1e-6);
    }
  }
}

TEST(ResidualCommitTest, TheSumHasTheGradientOfItsEstimator) {
  const auto stack = make_stack();
  const auto x = stack.x.clone().requires_grad_();
  const auto found = ops::residual_commit(x, stack.codebooks, stack.indices);
  const auto upstream = at::randn_like(x);
  const auto grad = torch::autograd::grad({found.quantized.mul(upstream).sum()}, {x})[0];
  EXPECT_TRUE(at::equal(
      grad, ops::rotation_trick_backward(upstream, x.detach(), found.quantized.detach())));
}

}  // namespace
}  // namespace torchvq::residual_commit_test
