// residual_lookup and the losses of its results, against loops over tokens and levels.
#include <torchvq/ops/residual_commitment_loss.h>
#include <torchvq/ops/residual_lookup.h>

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "expect_throw.h"

namespace torchvq::residual_lookup_test {
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

TEST(ResidualLookupTest, EachLevelGetsWhatTheOneBeforeHasLeft) {
  const auto stack = make_stack();
  const auto [inputs, codes, quantized] =
      ops::residual_lookup(stack.x, stack.codebooks, stack.indices);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < kDim; ++d) {
      float left = stack.x[0][t][d].item<float>(), total = 0;
      for (int64_t level = 0; level < 2; ++level) {
        const float code = stack.code(level, t, d);
        EXPECT_EQ(inputs[static_cast<size_t>(level)][0][t][d].item<float>(), left);
        EXPECT_EQ(codes[static_cast<size_t>(level)][0][t][d].item<float>(), code);
        left -= code;
        total += code;
      }
      EXPECT_EQ(quantized[0][t][d].item<float>(), total);
    }
  }
}

TEST(ResidualLookupTest, ATokenThatIsNotFiniteHasNoCode) {
  const auto stack = make_stack();
  stack.x[0][2][1] = std::numeric_limits<float>::infinity();
  const auto found = ops::residual_lookup(stack.x, stack.codebooks, stack.indices);
  EXPECT_TRUE(found.quantized[0][2].isnan().all().item<bool>());
  EXPECT_EQ(found.quantized.isnan().sum().item<int64_t>(), kDim);
}

TEST(ResidualLookupTest, AnIndexOutsideTheCodebookIsRefused) {
  const auto stack = make_stack();
  stack.indices[0][8][1] = 4;
  expect_throw_with<c10::IndexError>(
      [&] { ops::residual_lookup(stack.x, stack.codebooks, stack.indices); },
      "residual_lookup: expected indices to be in [0, 4), but got 4");
}

TEST(ResidualCommitmentLossTest, LossesAndGradientAreThoseOfTheFormula) {
  auto stack = make_stack();
  const auto found = ops::residual_lookup(stack.x, stack.codebooks, stack.indices);
  const auto x = stack.x.clone().requires_grad_();
  const auto losses = ops::residual_commitment_loss(x, found.inputs, found.codes);
  const auto weights = at::tensor({0.5F, 3.0F});
  const auto grad = torch::autograd::grad({losses.mul(weights).sum()}, {x})[0];
  const double values = kTokens * kDim;
  for (int64_t level = 0; level < 2; ++level) {
    const auto i = static_cast<size_t>(level);
    double total = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t d = 0; d < kDim; ++d) {
        total += std::pow(found.inputs[i][0][t][d].item<double>() - stack.code(level, t, d), 2);
      }
    }
    EXPECT_NEAR(losses[level].item<double>(), total / values, 1e-6);
  }
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t d = 0; d < kDim; ++d) {
      double wanted = 0;
      for (size_t i = 0; i < 2; ++i) {
        const double left =
            found.inputs[i][0][t][d].item<double>() - stack.code(static_cast<int64_t>(i), t, d);
        wanted += weights[static_cast<int64_t>(i)].item<double>() * 2 * left / values;
      }
      EXPECT_NEAR(grad[0][t][d].item<double>(), wanted, 1e-6);
    }
  }
}

TEST(ResidualCommitmentLossTest, LevelsHaveOneShape) {
  const auto stack = make_stack();
  const auto found = ops::residual_lookup(stack.x, stack.codebooks, stack.indices);
  expect_throw_with<c10::ValueError>(
      [&] { ops::residual_commitment_loss(stack.x, found.inputs, {found.codes[0]}); },
      "residual_commitment_loss: expected codes to have 2 levels, as inputs, but got 1");
}

}  // namespace
}  // namespace torchvq::residual_lookup_test
