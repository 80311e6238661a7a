#include <torchvq/ops/code_statistics.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/decode_sums.h>

#include "expect_throw.h"
#include "kernels/exponents.h"
#include "kernels/fixed_point.h"

namespace torchvq::code_statistics_test {
namespace {

using testing::expect_throw_with;

at::Tensor exponents_of(at::IntArrayRef values) {
  return at::tensor(values, at::kInt).unsqueeze(0);
}

TEST(CodeStatisticsTest, ExponentIsTheSmallestThatHoldsTheMagnitude) {
  EXPECT_EQ(kernels::exponent_of(1.0), 0);
  EXPECT_EQ(kernels::exponent_of(1.0 + 0x1p-52), 1);
  EXPECT_EQ(kernels::exponent_of(0.5), -1);
  EXPECT_EQ(kernels::exponent_of(0x1p-149), -149);
  EXPECT_EQ(kernels::exponent_of(0.0), kernels::kMinExponent);
  EXPECT_EQ(kernels::exponent_of(std::numeric_limits<double>::max()), kernels::kMaxExponent);
}

TEST(CodeStatisticsTest, CountsAndAddsEveryTokenOnce) {
  const auto x = at::tensor({1.0F, 2.0F, 3.0F, -4.0F}).reshape({1, 4, 1});
  const auto indices = at::tensor({0, 1, 0, -1}, at::kLong).unsqueeze(0);
  const auto [counts, sums, used] = ops::code_statistics(x, indices, exponents_of({0, 0, 2}));
  EXPECT_TRUE(at::equal(counts, at::tensor({2, 1, 0}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(used, exponents_of({0, 0, 2})));
  const auto decoded = ops::decode_sums(sums, used, at::kFloat).flatten();
  EXPECT_TRUE(at::equal(decoded, at::tensor({4.0F, 2.0F, 0.0F})));
}

TEST(CodeStatisticsTest, ThreadsAndOrderDoNotChangeABit) {
  at::manual_seed(0);
  const auto x = at::randn({2, 20000, 7}) * at::randn({2, 20000, 1}).exp();
  const auto indices = at::randint(0, 5, {2, 20000}, at::kLong).clamp_max(2);
  const auto exponents = ops::code_exponents(at::randn({2, 5, 7}));
  at::set_num_threads(1);
  const auto [counts, sums, used] = ops::code_statistics(x, indices, exponents);
  at::set_num_threads(4);
  const auto order = at::randperm(20000, at::kLong);
  const auto [counts2, sums2, used2] =
      ops::code_statistics(x.index_select(1, order), indices.index_select(1, order), exponents);
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(counts, counts2));
  EXPECT_TRUE(at::equal(sums, sums2));
  EXPECT_TRUE(at::equal(used, used2));
}

TEST(CodeStatisticsTest, MaskedAndNonFiniteTokensNeverArrive) {
  auto x = at::ones({1, 4, 2});
  x[0][0][1] = std::numeric_limits<float>::quiet_NaN();
  x[0][1].fill_(1e30F);
  const auto mask = at::tensor({1, 0, 1, 1}).to(at::kBool);
  const auto [counts, sums, used] =
      ops::code_statistics(x, at::zeros({1, 4}, at::kLong), exponents_of({0}), mask);
  EXPECT_EQ(counts.item<int64_t>(), 2);
  EXPECT_EQ(used.item<int32_t>(), 0);
  EXPECT_TRUE(sums.eq(int64_t{2} << 30).all().item<bool>());
}

TEST(CodeStatisticsTest, TwoWordsKeepFloat64) {
  const double value = 1.0 + 0x1p-50;
  const auto x = at::full({1, 3, 1}, value, at::kDouble);
  const auto [counts, sums, used] =
      ops::code_statistics(x, at::zeros({1, 3}, at::kLong), exponents_of({0}));
  EXPECT_EQ(sums.size(0), 2);
  EXPECT_EQ(ops::decode_sums(sums, used, at::kDouble).item<double>(), 3 * value);
}

TEST(CodeStatisticsTest, StickyBitKeepsTheSideOfATie) {
  const int64_t tie = (int64_t{1} << 61) + (int64_t{1} << 37);
  EXPECT_EQ(static_cast<float>(kernels::decode_sum<float>(tie + 1, 30)),
            std::nextafter(0x1p61F, 0x1p62F));
  EXPECT_EQ(static_cast<float>(kernels::decode_sum<float>(tie - 1, 30)), 0x1p61F);
}

TEST(CodeStatisticsTest, BadArgumentsAreNamed) {
  const auto x = at::zeros({1, 2, 3});
  const auto indices = at::zeros({1, 2}, at::kLong);
  const auto exponents = at::zeros({1, 4}, at::kInt);
  expect_throw_with<c10::ValueError>([&] { ops::code_statistics(x[0], indices, exponents); },
                                     "code_statistics: expected x to have 3 dimensions (H, N, D)");
  expect_throw_with<c10::TypeError>(
      [&] { ops::code_statistics(x, indices, exponents.to(at::kLong)); },
      "code_statistics: expected exponents to be Int");
  expect_throw_with<c10::IndexError>(
      [&] { ops::code_statistics(x, indices + 4, exponents); },
      "code_statistics: expected indices to be in [-1, 4), but got 4");
  expect_throw_with<c10::ValueError>(
      [&] { ops::code_exponents(x[0]); },
      "code_exponents: expected codebook to have 3 dimensions (H, K, D)");
  expect_throw_with<c10::TypeError>(
      [&] { ops::decode_sums(at::zeros({1, 1, 4, 3}, at::kLong), exponents, at::kHalf); },
      "decode_sums: expected dtype to be float32 or float64");
}

}  // namespace
}  // namespace torchvq::code_statistics_test
