#include <torchvq/kmeans.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <torchvq/ops/kmeans.h>

#include "expect_throw.h"
#include "ops/kmeans_steps.h"

namespace torchvq::kmeans_test {
namespace {

/// 8 well separated clusters of 50 points each.
at::Tensor example_points() {
  at::manual_seed(0);
  const auto centres = at::randn({8, 1, 5}) * 20;
  return (centres + at::randn({8, 50, 5}) * 0.1).reshape({400, 5});
}

double error(const at::Tensor& x, const at::Tensor& codebook) {
  return std::get<0>(at::cdist(x.to(at::kDouble), codebook.to(at::kDouble)).min(1))
      .square()
      .mean()
      .item<double>();
}

TEST(KmeansTest, FindsSeparatedClusters) {
  const auto x = example_points();
  const auto [codebook, counts] = kmeans(x, 8);
  EXPECT_TRUE(counts.eq(50).all().item<bool>());
  EXPECT_LT(error(x, codebook), 5 * 0.011);
}

TEST(KmeansTest, OrderOfPointsDoesNotMatter) {
  const auto x = example_points();
  const auto shuffled = x.index_select(0, at::randperm(400, at::kLong));
  EXPECT_TRUE(at::equal(kmeans(x, 20).codebook, kmeans(shuffled, 20).codebook));
}

TEST(KmeansTest, CosineCodesAreUnitVectors) {
  const auto codebook = kmeans(example_points(), 8, {.metric = "cosine"}).codebook;
  EXPECT_TRUE(at::allclose(codebook.norm(2, -1), at::ones({8})));
}

TEST(KmeansTest, FewerPointsThanCodesAreAllKept) {
  const auto x = at::tensor({1.0F, 2.0F, 2.0F, 5.0F}).unsqueeze(1);
  const auto [codebook, counts] = kmeans(x, 5);
  EXPECT_EQ(error(x, codebook), 0);
  EXPECT_EQ(counts.sum().item<int64_t>(), 4);
  EXPECT_EQ(counts.gt(0).sum().item<int64_t>(), 3);
}

at::Tensor rng_of(int64_t seed) { return at::tensor({seed, int64_t{0}}, at::kLong); }

/// Points at 1, 2 and 3 from the only code, the last one twice, and one on the code.
detail::Points far_points(int64_t seed) {
  const auto x = at::tensor({1.0F, -2.0F, 3.0F, 3.0F, 0.0F}).unsqueeze(1);
  return detail::usable_points(x, std::nullopt, rng_of(seed), /*unit=*/false);
}

TEST(DrawFarPointsTest, DrawsInProportionToTheSquaredDistance) {
  constexpr int64_t kDraws = 3000;
  auto drawn = at::zeros({3}, at::kDouble);
  for (int64_t seed = 0; seed < kDraws; ++seed) {
    const auto points = detail::draw_far_points(far_points(seed), at::zeros({1, 1}), rng_of(seed),
                                                /*iteration=*/0, /*unit=*/false, /*limit=*/1);
    drawn[points.rows.abs().item<int64_t>() - 1] += 1;
  }
  const auto expected = at::tensor({1.0, 4.0, 9.0}, at::kDouble) * (kDraws / 14.0);
  // 13.8 is the 0.999 quantile of chi-square with two degrees of freedom.
  EXPECT_LT(((drawn - expected).square() / expected).sum().item<double>(), 13.8);
}

TEST(DrawFarPointsTest, DrawsDistinctPointsThatAreNotCodes) {
  bool differs = false;
  for (int64_t iteration = 0; iteration < 20; ++iteration) {
    const auto points = detail::draw_far_points(far_points(5), at::zeros({1, 1}), rng_of(5),
                                                iteration, /*unit=*/false, /*limit=*/5);
    EXPECT_TRUE(
        at::equal(std::get<0>(points.rows.abs().flatten().sort()), at::tensor({1.0F, 2.0F, 3.0F})));
    differs = differs || points.rows[0].abs().item<float>() != 3;
  }
  EXPECT_TRUE(differs);
}

TEST(KmeansTest, BadArgumentsAreNamed) {
  testing::expect_throw_with<c10::ValueError>(
      [] { kmeans(at::zeros({0, 3}), 4); }, "kmeans: expected x to hold at least 1 finite vector");
  testing::expect_throw_with<c10::ValueError>(
      [] { kmeans(at::zeros({3}), 4); }, "kmeans: expected x to have shape (N, D) or (H, N, D)");
  testing::expect_throw_with<c10::ValueError>(
      [] { kmeans(at::zeros({5, 3}), 0); },
      "kmeans: expected codebook_size to be at least 1, but got 0");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  testing::expect_throw_with<c10::ValueError>(
      [&] { kmeans(at::full({5, 3}, nan), 2); },
      "kmeans: expected x to hold at least 1 finite vector");
}

}  // namespace
}  // namespace torchvq::kmeans_test
