// Tokens of inputs with features first, by the kernel of every instruction set, against torch's own
// transposes: copies have the same bits.
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torchvq/functional/layout.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq {
namespace {

using kernels::CpuLevel;

class LayoutTest : public testing::TestWithParam<CpuLevel> {
 protected:
  void SetUp() override { kernels::limit_cpu_level(GetParam()); }
  void TearDown() override { kernels::limit_cpu_level(CpuLevel::kAmx); }
};

TEST_P(LayoutTest, TokensAreThoseOfATransposeAndUnpackingIsTheInverse) {
  torch::manual_seed(0);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble}) {
    // Sides around the lanes of all vectors; 2001 positions are more than one task.
    for (const int64_t features : {4, 15, 16, 31, 32, 33, 257}) {
      for (const int64_t positions : {63, 64, 65, 2001}) {
        const auto x = torch::randn({2, features, positions}).to(dtype);
        const auto tokens = functional::pack_tokens(x, true);
        ASSERT_TRUE(torch::equal(tokens, x.transpose(1, 2))) << features << " " << positions;
        auto trained = tokens.contiguous().requires_grad_(true);
        const auto back = functional::unpack_tokens(trained, x, true);
        ASSERT_TRUE(torch::equal(back.detach(), x)) << features << " " << positions;
        back.backward(x);
        ASSERT_TRUE(torch::equal(trained.grad(), tokens)) << features << " " << positions;
      }
    }
  }
}

TEST(Layout, RefusesNoHeads) {
  const auto tokens = torch::zeros({2, 3, 4});
  for (const int64_t heads : {0, -1}) {
    for (const bool separate : {false, true}) {
      EXPECT_THROW(functional::split_heads(tokens, heads, separate), c10::ValueError);
      EXPECT_THROW(functional::split_mask(tokens.select(2, 0).gt(0), heads, separate),
                   c10::ValueError);
    }
  }
}

TEST(Layout, RefusesMasksThatAreNotOneValuePerToken) {
  const auto tokens = torch::randn({2, 3, 4});
  const auto mask = torch::ones({2, 3}, torch::kBool);
  for (const auto& wrong : {mask.slice(1, 0, 2), mask.slice(0, 0, 1), mask[0], mask.unsqueeze(0)}) {
    EXPECT_THROW(functional::fill_masked(tokens, wrong), c10::ValueError) << wrong.sizes();
    EXPECT_THROW(functional::fill_padding(torch::randn({2, 3, 5, 4}), wrong), c10::ValueError)
        << wrong.sizes();
  }
  EXPECT_THROW(functional::fill_masked(tokens, mask.to(torch::kFloat)), c10::TypeError);
  EXPECT_THROW(functional::fill_padding(tokens, mask.to(torch::kLong)), c10::TypeError);
}

TEST(Layout, LengthsAreAnyIntegers) {
  const std::vector<bool> wanted{true, true, false, true, true, true};
  for (const auto dtype : {torch::kByte, torch::kUInt16, torch::kUInt32, torch::kUInt64}) {
    const auto mask =
        functional::lens_to_mask(torch::tensor({int64_t{2}, int64_t{3}}).to(dtype), 3).flatten();
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(mask[i].item<bool>(), wanted[i]) << dtype;
  }
  const auto longest = torch::full({1}, -1, torch::kLong).view(torch::kUInt64);
  EXPECT_TRUE(functional::lens_to_mask(longest, 3).all().item<bool>());
  EXPECT_THROW(functional::lens_to_mask(torch::tensor({int64_t{2}}), -1), c10::ValueError);
}

INSTANTIATE_TEST_SUITE_P(Levels, LayoutTest,
                         testing::Values(CpuLevel::kDefault, CpuLevel::kAvx2, CpuLevel::kAvx512));

}  // namespace
}  // namespace torchvq
