#include <torchvq/ops/random_numbers.h>

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "detail/random_tensor.h"
#include "expect_throw.h"
#include "kernels/random.h"

namespace torchvq::random_numbers_test {
namespace {

using testing::expect_throw_with;

at::Tensor example_rng() { return at::tensor({int64_t{7}, int64_t{3}}); }

TEST(RandomNumbersTest, HashIsSplitMix64) {
  // The published first outputs of SplitMix64 for seed 1234567; its position starts at 1.
  EXPECT_EQ(kernels::random_bits(1234567, 1), 6457827717110365317ULL);
  EXPECT_EQ(kernels::random_bits(1234567, 2), 3203168211198807973ULL);
}

TEST(RandomNumbersTest, TensorTwinGivesTheSameBits) {
  const auto key = detail::random_key(example_rng(), 5, 11);
  EXPECT_EQ(static_cast<uint64_t>(key.item<int64_t>()), kernels::random_key(7, 3, 5, 11));
  const auto bits = detail::random_bits(key, at::arange(1000, at::kLong));
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(static_cast<uint64_t>(bits[i].item<int64_t>()),
              kernels::random_bits(kernels::random_key(7, 3, 5, 11), static_cast<uint64_t>(i)));
  }
}

TEST(RandomNumbersTest, StaysInsideTheIntervalAtTheExtremes) {
  for (const int precision : {8, 11, 24, 53}) {
    EXPECT_GT(kernels::uniform_from_bits(0, precision), 0.0);
    EXPECT_LT(kernels::uniform_from_bits(~uint64_t{0}, precision), 1.0);
  }
  EXPECT_EQ(static_cast<float>(kernels::uniform_from_bits(~uint64_t{0}, 24)), 0x1.fffffep-1F);
}

TEST(RandomNumbersTest, SeriesOfNormalNumbersMatchTheLibraryFunctions) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const double u = kernels::uniform_from_bits(kernels::random_bits(1, i), 53);
    ASSERT_NEAR(kernels::log_of_uniform(u), std::log(u), 1e-15 * std::abs(std::log(u))) << u;
    ASSERT_NEAR(kernels::cosine_of_turn(u), std::cos(2 * M_PI * u), 1e-15) << u;
    ASSERT_NEAR(kernels::square_root(u * 70), std::sqrt(u * 70), 5e-16 * std::sqrt(u * 70));
  }
}

TEST(RandomNumbersTest, ExtremeNormalNumbersAreFinite) {
  const double smallest = kernels::normal_from_bits(0, 0),
               largest = kernels::normal_from_bits(~uint64_t{0}, 0);
  EXPECT_NEAR(std::abs(smallest), std::sqrt(-2 * std::log(0x1p-53)), 1e-12);
  EXPECT_NEAR(std::abs(largest), 0x1p-26, 1e-15);
}

TEST(RandomNumbersTest, NormalNumbersHaveMeanZeroAndVarianceOne) {
  const auto z = ops::random_numbers(at::tensor({int64_t{1}, int64_t{2}}), RandomPurpose::kNoise,
                                     Distribution::kNormal, {400000}, at::kDouble);
  EXPECT_NEAR(z.mean().item<double>(), 0, 5 / std::sqrt(4e5));
  EXPECT_NEAR(z.var().item<double>(), 1, 5 * std::sqrt(2 / 4e5));
}

TEST(RandomNumbersTest, BadArgumentsAreNamed) {
  expect_throw_with<c10::ValueError>(
      [] {
        ops::random_numbers(at::zeros({3}, at::kLong), RandomPurpose::kNoise,
                            Distribution::kUniform, {2});
      },
      "random_numbers: expected rng to have shape (2,)");
  expect_throw_with<c10::TypeError>(
      [] {
        ops::random_numbers(at::zeros({2}), RandomPurpose::kNoise, Distribution::kNormal, {2});
      },
      "random_numbers: expected rng to be Long");
}

}  // namespace
}  // namespace torchvq::random_numbers_test
