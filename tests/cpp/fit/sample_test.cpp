// Helpers of fit_codebook: the rows of its sample, and the vectors to which unused codes move.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fit/far_vectors.h"
#include "fit/sample_rows.h"

namespace torchvq::fit::sample_test {
namespace {

at::Tensor rng(int64_t seed) { return at::tensor({seed, int64_t{0}}, at::kLong); }

TEST(SampledRowsTest, TakesOneRowOfEachStretch) {
  for (const int64_t size : {1, 7, 10, 99, 100}) {
    const auto rows = SampledRows(100, size, rng(3)).within(0, 100);
    ASSERT_EQ(rows.size(0), size);
    for (int64_t i = 0; i < size; ++i) {
      const auto row = rows[i].item<int64_t>();
      EXPECT_GE(row, i * 100 / size);
      EXPECT_LT(row, (i + 1) * 100 / size);
    }
  }
}

TEST(SampledRowsTest, IsTheSameForAnySplit) {
  const SampledRows sampled(100, 13, rng(3));
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < 100; first += 9) {
    parts.push_back(sampled.within(first, std::min<int64_t>(9, 100 - first)) + first);
  }
  EXPECT_TRUE(at::equal(at::cat(parts), sampled.within(0, 100)));
}

TEST(SampledRowsTest, DependsOnTheSeedAndCoversEachStretch) {
  auto seen = at::zeros({10}, at::kLong);
  for (int64_t seed = 0; seed < 200; ++seed)
    seen[SampledRows(10, 1, rng(seed)).within(0, 10)[0].item<int64_t>()] += 1;
  EXPECT_GT(seen.min().item<int64_t>(),
            5);  // 20 expected; 5 is more than three standard deviations below
}

TEST(FarVectorsTest, KeepsTheFarthestOnceForAnySplit) {
  const auto x = at::arange(20, at::kFloat).view({10, 2});
  auto distances = at::tensor({0, 5, 1, 9, 9, 0, 5, 2, 7, 3}, at::kFloat);
  auto repeated = x.clone();
  repeated[4] = repeated[3];
  for (const int64_t step : {1, 3, 10}) {
    FarVectors far(4);
    for (int64_t first = 0; first < 10; first += step) {
      const auto count = std::min(step, 10 - first);
      far.add(repeated.narrow(0, first, count), distances.narrow(0, first, count), first);
    }
    // Rows 3, 4, 8, 1 are kept (1 before 6 by row), and 4 repeats 3.
    const auto places = far.distinct();
    ASSERT_EQ(places.size(), 3u);
    EXPECT_TRUE(at::equal(at::stack(places), x.index_select(0, at::tensor({3, 8, 1}, at::kLong))));
  }
}

TEST(FarVectorsTest, IgnoresVectorsOnTheirCode) {
  FarVectors far(4);
  far.add(at::ones({3, 2}), at::zeros({3}), 0);
  EXPECT_TRUE(far.distinct().empty());
}

}  // namespace
}  // namespace torchvq::fit::sample_test
