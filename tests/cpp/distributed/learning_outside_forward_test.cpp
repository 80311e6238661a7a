// update_ema_indices() and expire_codes_() on several ranks. The oracle is one process with the
// concatenated batch; comparison is by bits.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/modules/state_dict.h>
#include <torchvq/modules/vector_quantize.h>

#include "distributed/ranks.h"
#include "distributed/synced_modules_support.h"

namespace torchvq::learning_outside_forward_test {
namespace {

using testing::Batch;
using testing::batch_of;
using testing::group_of;
using testing::joined;
using testing::on_ranks;
using testing::options_with;

constexpr int kRanks = 2;

VectorQuantize replacing(const std::optional<std::string>& group) {
  torch::manual_seed(0);
  return VectorQuantize(
      options_with([](auto& options) { options.threshold_ema_dead_code(2); }, group));
}

/// The codes that the tokens are said to have chosen.
torch::Tensor indices_of(const Batch& batch) {
  return batch.x.select(-1, 0).gt(0).to(torch::kLong);
}

void learn(VectorQuantize& quantizer, const Batch& batch) {
  quantizer->update_ema_indices(batch.x, indices_of(batch), batch.mask);
}

void expect_state(const VectorQuantize& found, const VectorQuantize& expected) {
  const auto state = state_dict(*found);
  for (const auto& [name, value] : state_dict(*expected)) {
    EXPECT_TRUE(torch::equal(state.at(name), value)) << name;
  }
}

class LearningOutsideForwardTest : public ::testing::TestWithParam<bool> {};

TEST_P(LearningOutsideForwardTest, LearnsWhatOneProcessLearns) {
  auto one = replacing(std::nullopt);
  std::vector<VectorQuantize> modules;
  for (int rank = 0; rank < kRanks; ++rank) modules.push_back(replacing(group_of(rank)));
  one->train(GetParam());
  for (auto& module : modules) module->train(GetParam());
  for (int step = 0; step < 4; ++step) learn(one, joined(batch_of(step, kRanks)));
  const auto errors = on_ranks(kRanks, [&](int rank, const std::string&) {
    for (int step = 0; step < 4; ++step) learn(modules[rank], batch_of(step, kRanks)[rank]);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  for (const auto& module : modules) expect_state(module, one);
}

INSTANTIATE_TEST_SUITE_P(Modes, LearningOutsideForwardTest, ::testing::Bool());

TEST(ExpireCodesTest, RanksReplaceTheCodesOfRank0) {
  auto one = replacing(std::nullopt);
  std::vector<VectorQuantize> modules;
  for (int rank = 0; rank < kRanks; ++rank) modules.push_back(replacing(group_of(rank)));
  {
    torch::NoGradGuard no_grad;
    modules[1]->codebook_state->cluster_size.fill_(5);
  }
  one->expire_codes_(joined(batch_of(0, kRanks)).x);
  const auto errors = on_ranks(kRanks, [&](int rank, const std::string&) {
    modules[rank]->expire_codes_(batch_of(0, kRanks)[rank].x);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  for (const auto& module : modules) expect_state(module, one);
}

}  // namespace
}  // namespace torchvq::learning_outside_forward_test
