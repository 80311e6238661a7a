// count_codes_, and synced_usage of its counts, against codebook_usage.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torchvq/distributed/synced_usage.h>
#include <torchvq/functional/usage.h>
#include <torchvq/ops/count_codes_.h>

#include "expect_throw.h"

namespace torchvq::count_codes_test {
namespace {

using torchvq::testing::expect_throw_with;

TEST(CountCodesTest, CountsLevelsAndClearsTheOthers) {
  const std::vector<at::Tensor> counts{at::full({2, 3}, 7, at::kLong),
                                       at::full({1, 2}, 7, at::kLong)};
  const auto indices = at::tensor({0, 2, 2, -1, 1, 1, 1, 1}, at::kLong).view({2, 4});
  ops::count_codes_(counts, {indices});
  EXPECT_TRUE(counts[0].equal(at::tensor({1, 0, 2, 0, 4, 0}, at::kLong).view({2, 3})));
  EXPECT_TRUE(counts[1].equal(at::zeros({1, 2}, at::kLong)));
}

TEST(CountCodesTest, RefusesAnIndexBeforeItWrites) {
  const std::vector<at::Tensor> counts{at::full({1, 3}, 7, at::kLong)};
  const auto bad = at::tensor({0, 3}, at::kLong).view({1, 2});
  expect_throw_with<c10::IndexError>([&] { ops::count_codes_(counts, {bad}); },
                                     "in [-1, 3), but got 3");
  EXPECT_TRUE(counts[0].eq(7).all().item<bool>());
}

TEST(SyncedUsageTest, AgreesWithCodebookUsage) {
  at::manual_seed(0);
  std::vector<at::Tensor> counts, sizes, replaced;
  for (const int64_t codes : {1, 7, 1000}) {
    counts.push_back(at::randint(0, 4, {1, codes}, at::kLong));
    sizes.push_back(at::rand({1, codes}) * 4);
    replaced.push_back(at::full({1}, codes, at::kLong));
  }
  distributed::UsageOptions options;
  options.threshold = {2, 0, 0};
  options.threshold_fraction = {0, 0.5, 0};
  const auto table = distributed::synced_usage(counts, sizes, replaced, options);
  const auto* row = table.const_data_ptr<double>();
  for (size_t level = 0; level < counts.size(); ++level, row += distributed::kUsageColumns) {
    const auto expected = functional::codebook_usage(counts[level][0]);
    EXPECT_DOUBLE_EQ(row[distributed::kUsage], expected.usage);
    EXPECT_DOUBLE_EQ(row[distributed::kPerplexity], expected.perplexity);
    EXPECT_DOUBLE_EQ(row[distributed::kEntropyBits], expected.entropy_bits);
    EXPECT_EQ(row[distributed::kTokens], counts[level].sum().item<double>());
    EXPECT_EQ(row[distributed::kReplaced], static_cast<double>(counts[level].size(1)));
  }
  const auto dead = table.select(1, distributed::kDead);
  EXPECT_EQ(dead[0].item<double>(), sizes[0].lt(2).sum().item<double>());
  EXPECT_EQ(dead[1].item<double>(), sizes[1].lt(0.5 * sizes[1].mean()).sum().item<double>());
  EXPECT_EQ(dead[2].item<double>(), sizes[2].lt(0.01).sum().item<double>());
}

}  // namespace
}  // namespace torchvq::count_codes_test
