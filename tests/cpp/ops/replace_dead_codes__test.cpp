#include <torchvq/ops/replace_dead_codes_.h>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <torchvq/ops/dead_code_candidates.h>
#include <torchvq/ops/replace_with_candidates_.h>

#include "detail/codebook_average.h"
#include "detail/row_keys.h"
#include "expect_throw.h"

namespace torchvq::replace_dead_codes_test {
namespace {

struct State {
  at::Tensor embed = at::zeros({1, 4, 2});
  at::Tensor embed_avg = at::zeros({1, 4, 2});
  at::Tensor cluster_size = at::tensor({5.0F, 0.5F, 5.0F, 0.5F}).unsqueeze(0);
};

at::Tensor example_rng() { return at::tensor({int64_t{1}, int64_t{2}}); }
at::Tensor no_counts() { return at::zeros({1, 4}, at::kLong); }

TEST(ReplaceDeadCodesTest, DeadCodesBecomeDistinctTokens) {
  State state;
  const auto x = at::arange(1, 11, at::kFloat).reshape({1, 5, 2});
  const auto replaced = ops::replace_dead_codes_(state.embed, state.embed_avg, state.cluster_size,
                                                 x, no_counts(), example_rng());
  EXPECT_EQ(replaced.item<int64_t>(), 2);
  EXPECT_TRUE(at::equal(state.cluster_size, at::tensor({5.0F, 2.0F, 5.0F, 2.0F}).unsqueeze(0)));
  EXPECT_TRUE(at::equal(state.embed_avg, state.embed * 2));
  EXPECT_FALSE(at::equal(state.embed[0][1], state.embed[0][3]));
  EXPECT_EQ(state.embed[0][0].abs().max().item<float>(), 0);
}

TEST(ReplaceDeadCodesTest, TokensLimitTheNumberOnRequest) {
  const auto x = at::randn({1, 20, 2});
  const auto counts = at::tensor({3, 0, 0, 0}, at::kLong).unsqueeze(0);
  for (const auto& [most, wanted] : {std::pair{0.0, 0}, {0.3, 1}, {0.5, 2}, {100.0, 2}}) {
    State state;
    const auto replaced =
        ops::replace_dead_codes_(state.embed, state.embed_avg, state.cluster_size, x, counts,
                                 example_rng(), std::nullopt, {.most_per_token = most});
    EXPECT_EQ(replaced.item<int64_t>(), wanted);
    EXPECT_EQ(state.cluster_size.eq(2).sum().item<int64_t>(), wanted);
  }
}

TEST(ReplaceDeadCodesTest, HalvesEqualTheWhole) {
  State whole, halves;
  const auto x = at::randn({1, 20, 2});
  ops::replace_dead_codes_(whole.embed, whole.embed_avg, whole.cluster_size, x, no_counts(),
                           example_rng());
  const auto [keys_a, rows_a] = ops::dead_code_candidates(x.slice(1, 0, 7), example_rng(), 4);
  const auto [keys_b, rows_b] = ops::dead_code_candidates(x.slice(1, 7), example_rng(), 4);
  ops::replace_with_candidates_(halves.embed, halves.embed_avg, halves.cluster_size,
                                at::cat({keys_b, keys_a}, 1), at::cat({rows_b, rows_a}, 1),
                                no_counts(), example_rng());
  EXPECT_TRUE(at::equal(whole.embed, halves.embed));
}

TEST(ReplaceDeadCodesTest, HashOfTheCpuKernelEqualsThatOfTensorOperators) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    auto rows = at::randn({3, 50, 7}, dtype);
    rows[0][0].fill_(-0.0);
    const auto purpose = RandomPurpose::kDeadCodeCandidates;
    EXPECT_TRUE(at::equal(detail::row_keys(rows, example_rng(), purpose),
                          detail::row_keys_by_operators(rows, example_rng(), purpose)));
  }
}

TEST(ReplaceDeadCodesTest, UnitRowsOfTheCpuKernelEqualThoseOfTensorOperators) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    auto rows = at::randn({3, 50, 7}, dtype);
    rows[0][0].zero_();
    EXPECT_TRUE(at::equal(detail::unit_rows(rows), detail::unit_rows_by_operators(rows)));
  }
}

TEST(ReplaceDeadCodesTest, BadArgumentsAreNamed) {
  State state;
  const auto x = at::zeros({1, 5, 2});
  testing::expect_throw_with<c10::ValueError>(
      [&] {
        ops::replace_dead_codes_(state.embed, state.embed_avg, state.cluster_size, x, no_counts(),
                                 example_rng(), std::nullopt, {.threshold = -1});
      },
      "replace_dead_codes_: expected threshold to be in [0, 2^63], but got -1");
  testing::expect_throw_with<c10::ValueError>(
      [&] {
        ops::replace_dead_codes_(state.embed, state.embed_avg, state.cluster_size, x, no_counts(),
                                 example_rng(), std::nullopt, {.most_per_token = -1});
      },
      "replace_dead_codes_: expected most_per_token to be in [0, 2^63], but got -1");
  testing::expect_throw_with<c10::ValueError>(
      [&] { ops::dead_code_candidates(x, example_rng(), 0); },
      "dead_code_candidates: expected count to be at least 1");
}

}  // namespace
}  // namespace torchvq::replace_dead_codes_test
