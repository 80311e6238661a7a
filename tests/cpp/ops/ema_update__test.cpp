#include <torchvq/ops/ema_update_.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/ema_finish_.h>

#include "expect_throw.h"
#include "kernels/cpu/codebook_average.h"
#include "kernels/cpu/cpu_level.h"

namespace torchvq::ema_update_test {
namespace {

using testing::expect_throw_with;

struct State {
  at::Tensor cluster_size = at::tensor({2.0F, 3.0F, 1.0F}).unsqueeze(0);
  at::Tensor embed_avg = at::tensor({2.0F, 4.0F, 9.0F, 3.0F, -1.0F, 1.0F}).reshape({1, 3, 2});
  at::Tensor embed = at::zeros({1, 3, 2});
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> example_statistics() {
  const auto x = at::tensor({1.0F, 1.0F, 3.0F, 5.0F, 7.0F, 7.0F}).reshape({1, 3, 2});
  return ops::code_statistics(x, at::tensor({0, 0, 1}, at::kLong).unsqueeze(0),
                              at::zeros({1, 3}, at::kInt));
}

TEST(EmaUpdateTest, FollowsTheFormulaByHand) {
  State state;
  const auto [counts, sums, exponents] = example_statistics();
  ops::ema_update_(state.cluster_size, state.embed_avg, state.embed, counts, sums, exponents,
                   {.decay = 0.5, .eps = 0});
  EXPECT_TRUE(at::equal(state.cluster_size, at::tensor({2.0F, 2.0F, 0.5F}).unsqueeze(0)));
  EXPECT_TRUE(
      at::equal(state.embed_avg.flatten(), at::tensor({3.0F, 5.0F, 8.0F, 5.0F, -0.5F, 0.5F})));
  EXPECT_TRUE(at::equal(state.embed.flatten(), at::tensor({1.5F, 2.5F, 4.0F, 2.5F, -1.0F, 1.0F})));
}

TEST(EmaUpdateTest, CosineCodesAreUnitVectors) {
  State state;
  const auto [counts, sums, exponents] = example_statistics();
  ops::ema_update_(state.cluster_size, state.embed_avg, state.embed, counts, sums, exponents,
                   {.metric = "cosine"});
  EXPECT_TRUE(at::allclose(state.embed.norm(2, -1), at::ones({1, 3})));
}

/// Floats of all magnitudes, including zeros of both signs, the largest and the smallest.
at::Tensor hostile_floats(at::IntArrayRef sizes) {
  auto x = at::randint(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                       sizes, at::kInt)
               .view(at::kFloat)
               .nan_to_num(1.0, 3.0, -3.0);
  const auto special = at::tensor({0.0F, -0.0F, 3.4028235e38F, -3.4028235e38F, 1e-45F});
  x.flatten().slice(0, 0, 5).copy_(special);
  return x;
}

/// A codebook in which one code gets a token; of the others, some are in use and some are not.
State hostile_state(double magnitude) {
  constexpr int64_t kCodes = 300, kDim = 67;
  State state;
  state.cluster_size = at::rand({1, kCodes}).mul(magnitude);
  state.cluster_size.slice(1, 200).zero_();
  state.embed_avg = hostile_floats({1, kCodes, kDim});
  state.embed = hostile_floats({1, kCodes, kDim});
  return state;
}

TEST(EmaUpdateTest, CodesWithoutTokensHaveTheSameBitsOnEveryInstructionSet) {
  using kernels::CpuLevel;
  at::manual_seed(0);
  // Compared as bits, so that zeros of different sign differ.
  const auto bits = [](const at::Tensor& x) { return x.view(at::kInt); };
  for (const double magnitude : {1e-30, 1e-3, 1.0, 1e3, 1e30}) {
    const auto start = hostile_state(magnitude);
    const auto [counts, sums, exponents] = ops::code_statistics(
        at::ones({1, 1, 67}), at::zeros({1, 1}, at::kLong), at::zeros({1, 300}, at::kInt));
    std::vector<State> found;
    for (const auto level : {CpuLevel::kDefault, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
      kernels::limit_cpu_level(level);
      found.push_back({start.cluster_size.clone(), start.embed_avg.clone(), start.embed.clone()});
      auto& own = found.back();
      ops::ema_update_(own.cluster_size, own.embed_avg, own.embed, counts, sums, exponents);
    }
    kernels::limit_cpu_level(kernels::best_cpu_level());
    for (const auto& own : found) {
      EXPECT_TRUE(at::equal(bits(own.embed_avg), bits(found[0].embed_avg))) << magnitude;
      EXPECT_TRUE(at::equal(bits(own.embed), bits(found[0].embed))) << magnitude;
    }
  }
}

TEST(EmaUpdateTest, TwoHalvesEqualTheWhole) {
  State whole, halves;
  const auto [counts, sums, exponents] = example_statistics();
  ops::ema_update_(whole.cluster_size, whole.embed_avg, whole.embed, counts, sums, exponents);
  ops::ema_update_(halves.cluster_size, halves.embed_avg, halves.embed, counts, sums, exponents,
                   {.finish = false});
  EXPECT_EQ(halves.embed.abs().max().item<float>(), 0);
  ops::ema_finish_(halves.embed, halves.cluster_size, halves.embed_avg);
  EXPECT_TRUE(at::equal(whole.embed, halves.embed));
}

TEST(EmaUpdateTest, UnusedCodesMoveToTheHeaviest) {
  State state;
  state.cluster_size = at::tensor({1e-5F, 3.0F, 1.0F}).unsqueeze(0);
  const auto x = at::tensor({4.0F, 2.0F}).reshape({1, 1, 2});
  const auto [counts, sums, exponents] =
      ops::code_statistics(x, at::tensor({1}, at::kLong).unsqueeze(0), at::zeros({1, 3}, at::kInt));
  state.embed[0][0].fill_(-1.0F);
  ops::ema_update_(state.cluster_size, state.embed_avg, state.embed, counts, sums, exponents,
                   {.decay = 0.5, .eps = 0});
  const auto heaviest = at::tensor({6.5F / 2, 2.5F / 2});
  EXPECT_TRUE(at::equal(state.embed[0][1], heaviest));
  const auto drawn = (heaviest.to(at::kDouble) + 1) * 0.8 - 1;
  EXPECT_TRUE(at::equal(state.embed[0][0], drawn.to(at::kFloat)));
}

TEST(EmaUpdateTest, TotalHasNoOrder) {
  std::vector<float> sizes(1001);
  for (size_t i = 0; i < sizes.size(); ++i)
    sizes[i] = std::exp(std::sin(static_cast<float>(i)) * 9);
  const double total = kernels::order_free_total(sizes.data(), 1001);
  const double exact = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  EXPECT_NEAR(total, exact, 1e-12 * exact);
  std::reverse(sizes.begin(), sizes.end());
  EXPECT_EQ(kernels::order_free_total(sizes.data(), 1001), total);
}

TEST(EmaUpdateTest, BadArgumentsAreNamed) {
  State state;
  const auto [counts_, sums_, exponents_] = example_statistics();
  const auto &counts = counts_, &sums = sums_, &exponents = exponents_;
  const auto update = [&](const ops::EmaUpdateOptions& options) {
    ops::ema_update_(state.cluster_size, state.embed_avg, state.embed, counts, sums, exponents,
                     options);
  };
  expect_throw_with<c10::ValueError>([&] { update({.decay = 2}); },
                                     "ema_update_: expected decay to be in [0, 1]");
  expect_throw_with<c10::ValueError>([&] { update({.metric = "dot"}); },
                                     "ema_update_: expected metric to be");
  expect_throw_with<c10::TypeError>(
      [&] { ops::ema_finish_(state.embed.to(at::kHalf), state.cluster_size, state.embed_avg); },
      "ema_finish_: expected embed to be float32 or float64");
}

}  // namespace
}  // namespace torchvq::ema_update_test
