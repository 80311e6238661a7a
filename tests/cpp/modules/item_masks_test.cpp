// Residual stacks take a mask with one flag per item, (B,), as well as one per position.
#include <vector>

#include <gtest/gtest.h>

#include <torchvq/torchvq.h>

namespace torchvq::item_masks_test {
namespace {

constexpr int64_t kDim = 4;

/// Whether a mask (B,) gives what the mask (B, *) gives that repeats it.
template <typename Stack, typename Call>
void expect_items_are_positions(Stack stack, bool channel_first, at::IntArrayRef positions) {
  stack->eval();
  std::vector<int64_t> shape{3};
  shape.insert(shape.end(), positions.begin(), positions.end());
  const auto per_item = torch::tensor({true, false, true});
  std::vector<int64_t> column(shape.size(), 1);
  column[0] = 3;
  const auto per_position = per_item.view(column).expand(shape);
  shape.push_back(kDim);
  auto x = at::randn(shape);
  if (channel_first) x = x.movedim(-1, 1);
  const auto items = stack(x, Call().mask(per_item));
  const auto expected = stack(x, Call().mask(per_position));
  EXPECT_TRUE(at::equal(items.quantized, expected.quantized));
  EXPECT_TRUE(at::equal(items.indices, expected.indices));
  EXPECT_TRUE(items.quantized[1].eq(0).all().template item<bool>());
  EXPECT_FALSE(items.quantized[0].eq(0).all().template item<bool>());
  // A single vector per item has one position.
  const auto lone = stack(at::randn({3, kDim}), Call().mask(per_item));
  EXPECT_TRUE(lone.indices.select(-2, 1).eq(-1).all().template item<bool>());
}

TEST(ItemMasksTest, EveryStackTakesThem) {
  const auto lfq = ResidualLFQOptions(kDim, 2, 16).lfq(LFQOptions().commitment_loss_weight(0.25));
  const auto fsq = ResidualFSQOptions({5, 5, 5}, 2).dim(kDim);
  const auto sim = ResidualSimVQOptions(kDim, 2, 8);
  for (const bool maps : {false, true}) {
    const auto positions = maps ? std::vector<int64_t>{2, 5} : std::vector<int64_t>{5};
    expect_items_are_positions<ResidualLFQ, ResidualLFQForwardOptions>(
        ResidualLFQ(ResidualLFQOptions(lfq).is_channel_first(maps)), maps, positions);
    expect_items_are_positions<ResidualFSQ, ResidualFSQForwardOptions>(
        ResidualFSQ(ResidualFSQOptions(fsq).is_channel_first(maps)), maps, positions);
    expect_items_are_positions<ResidualSimVQ, ResidualSimVQForwardOptions>(
        ResidualSimVQ(ResidualSimVQOptions(sim).channel_first(maps)), maps, positions);
  }
}

TEST(ItemMasksTest, GroupsTakeThem) {
  const auto x = at::randn({3, 5, 2 * kDim});
  const auto mask = torch::tensor({true, false, true});
  const auto own = ResidualLFQOptions(kDim, 2, 16).lfq(LFQOptions().commitment_loss_weight(0.25));
  GroupedResidualLFQ lfq(GroupedResidualLFQOptions(2 * kDim, own).groups(2));
  const auto signs = lfq(x, ResidualLFQForwardOptions().mask(mask));
  EXPECT_TRUE(signs.indices.select(1, 1).eq(-1).all().item<bool>());
  GroupedResidualFSQ fsq(
      GroupedResidualFSQOptions(2 * kDim, ResidualFSQOptions({5, 5, 5}, 2)).groups(2));
  const auto levels = fsq(x, ResidualFSQForwardOptions().mask(mask));
  EXPECT_TRUE(levels.indices.select(1, 1).eq(-1).all().item<bool>());
}

}  // namespace
}  // namespace torchvq::item_masks_test
