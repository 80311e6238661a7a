#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torchvq/functional/reconstruction_error.h>
#include <torchvq/functional/usage.h>

#include <cmath>

#include "expect_throw.h"

namespace torchvq::functional::usage_test {
namespace {

using torchvq::testing::expect_throw_with;

TEST(CodebookUsageTest, MeasuresAKnownDistribution) {
  // p = 1/2, 1/4, 1/4: entropy 3/2 bits.
  const auto usage = codebook_usage(at::tensor({8, 4, 0, 4}, at::kLong));
  EXPECT_EQ(usage.codebook_size, 4);
  EXPECT_EQ(usage.used_codes, 3);
  EXPECT_DOUBLE_EQ(usage.usage, 0.75);
  EXPECT_DOUBLE_EQ(usage.entropy_bits, 1.5);
  EXPECT_DOUBLE_EQ(usage.perplexity, std::exp2(1.5));
  EXPECT_DOUBLE_EQ(usage.bits_per_vector, 2);
}

TEST(CodebookUsageTest, EqualCountsReachTheCodebookSize) {
  EXPECT_DOUBLE_EQ(codebook_usage(at::zeros({1024}).add(0.25)).perplexity, 1024);
}

TEST(CodebookUsageTest, OneCodeAndNoTokens) {
  EXPECT_EQ(codebook_usage(at::tensor({5}, at::kLong)).entropy_bits, 0);
  EXPECT_FALSE(std::signbit(codebook_usage(at::tensor({5}, at::kLong)).entropy_bits));
  EXPECT_EQ(codebook_usage(at::tensor({5}, at::kLong)).perplexity, 1);
  const auto none = codebook_usage(at::zeros({3}, at::kLong));
  EXPECT_EQ(none.used_codes, 0);
  EXPECT_EQ(none.perplexity, 0);
}

TEST(CodebookUsageTest, RefusesWhatIsNoCounts) {
  expect_throw_with<c10::ValueError>([] { codebook_usage(at::zeros({2, 2})); }, "shape (K,)");
  expect_throw_with<c10::ValueError>([] { codebook_usage(at::zeros({0})); }, "K >= 1");
  expect_throw_with<c10::ValueError>([] { codebook_usage(at::tensor({1, -1}, at::kLong)); },
                                     "but got -1");
  expect_throw_with<c10::ValueError>([] { codebook_usage(at::tensor({1.0, NAN})); },
                                     "finite and not negative");
}

TEST(ReconstructionErrorTest, AgreesWithTheFormulaForAnySplit) {
  const auto x = at::randn({101, 7}), decoded = at::randn({101, 7});
  const auto difference = x.to(at::kDouble) - decoded.to(at::kDouble);
  ReconstructionError whole, split;
  whole.add(x, decoded);
  for (int64_t row = 0; row < 101; ++row) split.add(x.narrow(0, row, 1), decoded.narrow(0, row, 1));
  EXPECT_EQ(whole.vectors(), 101);
  EXPECT_NEAR(whole.mse(), difference.square().mean().item<double>(), 1e-12);
  EXPECT_NEAR(whole.relative_error(),
              (difference.square().sum() / x.to(at::kDouble).square().sum()).item<double>(), 1e-12);
  EXPECT_EQ(whole.mse(), split.mse());
  EXPECT_EQ(whole.relative_error(), split.relative_error());
}

TEST(ReconstructionErrorTest, TakesWordsOfAnyStrides) {
  ReconstructionError error, same;
  error.add(at::randn({20, 4}), at::randn({20, 4}));
  same.set_words(at::stack({error.words(), at::zeros_like(error.words())}, 1).select(1, 0));
  EXPECT_EQ(same.mse(), error.mse());
  EXPECT_THROW(same.set_words(error.words().to(at::kInt)), c10::TypeError);
}

TEST(ReconstructionErrorTest, KeepsFloat64) {
  ReconstructionError error;
  error.add(at::tensor({1.0, 1.0}, at::kDouble).view({1, 2}),
            at::tensor({1.0 + 1e-12, 1.0}, at::kDouble).view({1, 2}));
  EXPECT_NEAR(error.mse(), 0.5e-24, 1e-27);
}

TEST(ReconstructionErrorTest, NothingIsNaNAndShapesMustAgree) {
  ReconstructionError error;
  error.add(at::empty({0, 3}), at::empty({0, 3}));
  EXPECT_TRUE(std::isnan(error.mse()));
  expect_throw_with<c10::ValueError>([&] { error.add(at::zeros({2, 3}), at::zeros({3, 2})); },
                                     "one shape (N, D)");
}

}  // namespace
}  // namespace torchvq::functional::usage_test
