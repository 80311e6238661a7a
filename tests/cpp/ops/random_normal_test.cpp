#include <torchvq/ops/random_normal.h>

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "expect_throw.h"
#include "kernels/random.h"

namespace torchvq::random_normal_test {
namespace {

TEST(RandomNormalTest, SeriesMatchTheLibraryFunctions) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const double u = kernels::uniform_from_bits(kernels::random_bits(1, i), 53);
    ASSERT_NEAR(kernels::log_of_uniform(u), std::log(u), 1e-15 * std::abs(std::log(u))) << u;
    ASSERT_NEAR(kernels::cosine_of_turn(u), std::cos(2 * M_PI * u), 1e-15) << u;
    ASSERT_NEAR(kernels::square_root(u * 70), std::sqrt(u * 70), 5e-16 * std::sqrt(u * 70));
  }
}

TEST(RandomNormalTest, ExtremesAreFinite) {
  const double smallest = kernels::normal_from_bits(0, 0),
               largest = kernels::normal_from_bits(~uint64_t{0}, 0);
  EXPECT_NEAR(std::abs(smallest), std::sqrt(-2 * std::log(0x1p-53)), 1e-12);
  EXPECT_NEAR(std::abs(largest), 0x1p-26, 1e-15);
}

TEST(RandomNormalTest, HasMeanZeroAndVarianceOne) {
  const auto z = ops::random_normal(at::tensor({int64_t{1}, int64_t{2}}), RandomPurpose::kNoise,
                                    {400000}, at::kDouble);
  EXPECT_NEAR(z.mean().item<double>(), 0, 5 / std::sqrt(4e5));
  EXPECT_NEAR(z.var().item<double>(), 1, 5 * std::sqrt(2 / 4e5));
}

TEST(RandomNormalTest, BadArgumentsAreNamed) {
  testing::expect_throw_with<c10::ValueError>(
      [] { ops::random_normal(at::zeros({3}, at::kLong), RandomPurpose::kNoise, {2}); },
      "random_normal: expected rng to have shape (2,)");
}

}  // namespace
}  // namespace torchvq::random_normal_test
