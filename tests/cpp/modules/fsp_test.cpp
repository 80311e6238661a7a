#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torchvq/functional/distribution.h>
#include <torchvq/modules/fsp.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::fsp_test {
namespace {

using Call = FSPForwardOptions;

FSPOptions options() { return FSPOptions({8, 5, 4}); }

at::Tensor counts() { return at::tensor({8.0, 5.0, 4.0}, at::kDouble); }

TEST(FSPTest, EvaluationTakesTheCentresOfTheBins) {
  FSP module(options());
  module->eval();
  const auto x = at::randn({2, 9, 3});
  const auto output = module(x);
  const auto u = (x.to(at::kDouble).tanh() + 1) / 2;
  const auto level = (u * counts()).floor();
  const auto expected = std::sqrt(12.0) * ((level + 0.5) / counts() - 0.5);
  EXPECT_TRUE(at::equal(output.level_indices, level.to(at::kLong)));
  EXPECT_TRUE(at::allclose(output.quantized, expected.to(at::kFloat)));
  EXPECT_TRUE(at::equal(module->indices_to_codes(output.indices), output.quantized));
  EXPECT_TRUE(at::equal(module->level_indices_to_indices(output.level_indices), output.indices));
  EXPECT_FALSE(output.norm_loss.requires_grad());
}

TEST(FSPTest, QuantilesInvertTheDistributionFunctions) {
  const auto x = at::linspace(-5, 5, 41, at::kDouble);
  for (const auto* name : {"tanh", "sigmoid", "normal", "laplace", "cauchy"}) {
    const auto u = functional::distribution_cdf(x, name);
    EXPECT_TRUE(at::allclose(functional::distribution_quantile(u, name), x, 1e-6)) << name;
    EXPECT_NEAR(u[20].item<double>(), 0.5, 1e-15) << name;
  }
  EXPECT_TRUE(at::allclose(functional::distribution_cdf(x, "tanh"), (x.tanh() + 1) / 2));
  EXPECT_THROW(functional::distribution_cdf(x, "relu"), c10::ValueError);
}

TEST(FSPTest, TrainingPerturbsByHalfABin) {
  FSP module(options());
  const auto twin = std::dynamic_pointer_cast<FSPImpl>(module->clone());
  const auto x = (at::randn({1, 2000, 3}) * 0.3).requires_grad_();
  const auto output = module(x);
  EXPECT_TRUE(at::equal(output.quantized, twin->forward(x).quantized));
  EXPECT_FALSE(at::equal(output.quantized, module(x).quantized));
  const auto u = (x.tanh() + 1) / 2;
  const auto moved = (output.quantized / std::sqrt(12.0) + 0.5 - u) * counts();
  EXPECT_LT(moved.abs().max().item<double>(), 0.5 + 1e-4);
  EXPECT_GT(moved.abs().max().item<double>(), 0.49);
  output.quantized.sum().backward();
  const auto slope = std::sqrt(12.0) * (1 - x.detach().tanh().square()) / 2;
  EXPECT_TRUE(at::allclose(x.grad(), slope, 1e-4, 1e-6));
}

TEST(FSPTest, LossIsThatOfTheMoments) {
  FSP module(options().vector_norm("kurt").quantize_rate(1));
  const auto x = at::randn({50, 3}, at::kDouble).requires_grad_();
  const auto loss = module(x).norm_loss;
  loss.backward();
  const auto twin = x.detach().clone().requires_grad_();
  const auto mean = twin.mean(0), variance = twin.var(0);
  const auto scaled = (twin - mean) / variance.sqrt();
  const auto expected = 0.1 * mean.square().mean() + 0.07 * (variance - 1).square().mean() +
                        0.06 * scaled.pow(3).mean(0).square().mean() +
                        0.05 * (scaled.pow(4).mean(0) - 3).square().mean();
  expected.backward();
  EXPECT_TRUE(at::allclose(loss, expected, 1e-6));
  EXPECT_TRUE(at::allclose(x.grad(), twin.grad(), 1e-5, 1e-8));
}

TEST(FSPTest, OneTokenAndConstantFeaturesHaveFiniteGradients) {
  for (const int64_t tokens : {0, 1, 9}) {
    FSP module(options().vector_norm("kurt"));
    const auto x = at::ones({1, tokens, 3}).requires_grad_();
    module(x).norm_loss.backward();
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  }
}

TEST(FSPTest, MaskedTokensAreAbsentInEveryLayout) {
  for (const bool first : {false, true}) {
    FSP module(options().dim(6).channel_first(first));
    const auto twin = std::dynamic_pointer_cast<FSPImpl>(module->clone());
    const auto last = at::randn({3, 4, 5, 6});
    const auto mask = at::rand({3, 4, 5}) < 0.5;
    const auto output = module(first ? last.movedim(-1, 1) : last, Call().mask(mask));
    const auto alone = twin->forward(last.index({mask}));
    const auto quantized = first ? output.quantized.movedim(1, -1) : output.quantized;
    EXPECT_TRUE(at::allclose(quantized.index({mask}), alone.quantized, 1e-5, 1e-6));
    EXPECT_TRUE(at::equal(output.indices.index({mask}), alone.indices));
    EXPECT_TRUE(at::allclose(output.norm_loss, alone.norm_loss));
    EXPECT_TRUE(output.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
  }
}

TEST(FSPTest, AVectorIsOneToken) {
  for (const bool training : {false, true}) {
    FSP one(options()), many(options());
    load_state_dict(*many, state_dict(*one));
    one->train(training), many->train(training);
    const auto z = at::randn({3});
    const auto only = one(z), whole = many(z.unsqueeze(0));
    EXPECT_TRUE(at::equal(only.quantized, whole.quantized.squeeze(0)));
    EXPECT_TRUE(at::equal(only.indices, whole.indices.squeeze(0)));
    EXPECT_TRUE(at::equal(only.level_indices, whole.level_indices.squeeze(0)));
    EXPECT_TRUE(at::equal(only.norm_loss, whole.norm_loss));
  }
}

TEST(FSPTest, StateComesBack) {
  FSP one(options().dim(6)), two(options().dim(6));
  const auto x = at::randn({2, 9, 6});
  one(x);
  load_state_dict(*two, state_dict(*one));
  EXPECT_TRUE(at::equal(one(x).quantized, two(x).quantized));
}

TEST(FSPTest, BadArgumentsAreRefused) {
  EXPECT_THROW(FSP(FSPOptions({})), c10::ValueError);
  EXPECT_THROW(FSP(options().act_name("relu")), c10::ValueError);
  EXPECT_THROW(FSP(options().vector_norm("l2")), c10::ValueError);
  EXPECT_THROW(FSP(options().quantize_rate(1.5)), c10::ValueError);
  FSP module(options());
  EXPECT_THROW(module(at::zeros({2, 4})), c10::ValueError);
  EXPECT_THROW(module(at::zeros({2, 3}), Call().eps(0.5)), c10::ValueError);
  EXPECT_THROW(module->indices_to_codes(at::full({1}, 160)), c10::IndexError);
}

}  // namespace
}  // namespace torchvq::fsp_test
