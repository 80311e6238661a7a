// Tokens of inputs with features first, by the kernel of every instruction set, against torch's own
// transposes: copies have the same bits.
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

INSTANTIATE_TEST_SUITE_P(Levels, LayoutTest,
                         testing::Values(CpuLevel::kDefault, CpuLevel::kAvx2, CpuLevel::kAvx512));

}  // namespace
}  // namespace torchvq
