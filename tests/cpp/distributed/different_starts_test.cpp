// Ranks that begin with different modules: one of them has loaded a checkpoint.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <torchvq/modules/state_dict.h>
#include <torchvq/modules/vector_quantize.h>

#include "distributed/ranks.h"
#include "distributed/synced_modules_support.h"

namespace torchvq::different_starts_test {
namespace {

using testing::batch_of;
using testing::Configure;
using testing::group_of;
using testing::on_ranks;
using testing::options_with;

/// A module for each of two ranks, and one that has learnt by itself.
struct Start {
  std::vector<VectorQuantize> ranks;
  VectorQuantize trained;

  explicit Start(const Configure& configure) : trained(options_with(configure, std::nullopt)) {
    for (int rank = 0; rank < 2; ++rank) {
      torch::manual_seed(0);
      ranks.emplace_back(options_with(configure, group_of(rank)));
    }
    for (int step = 0; step < 3; ++step) trained->forward(batch_of(step, 2)[0].x);
  }

  std::vector<std::string> step() {
    return on_ranks(
        2, [&](int rank, const std::string&) { ranks[rank]->forward(batch_of(4, 2)[rank].x); });
  }
};

TEST(DifferentStartsTest, SharedAffineStatisticsAreThoseOfRank0) {
  Start start([](auto& o) { o.affine_param(true).sync_affine_param(true); });
  load_state_dict(*start.ranks[0], state_dict(*start.trained));
  EXPECT_EQ(start.step(), std::vector<std::string>(2));
  const auto first = state_dict(*start.ranks[0]), second = state_dict(*start.ranks[1]);
  for (const auto& [name, value] : first) EXPECT_TRUE(at::equal(value, second.at(name))) << name;
}

TEST(DifferentStartsTest, TheStateOfAnOwnOptimizerIsLoadedOnAllRanksOrNone) {
  const auto adam = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.05));
  };
  const Configure configure = [&](auto& o) {
    o.learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(adam);
  };
  Start none(configure), one(configure), both(configure);
  EXPECT_EQ(none.step(), std::vector<std::string>(2));
  load_state_dict(*one.ranks[0], state_dict(*one.trained));
  for (const auto& error : one.step()) {
    EXPECT_NE(
        error.find("rank 0: own optimizer true with loaded state; rank 1: own optimizer true"),
        std::string::npos)
        << error;
  }
  for (auto& rank : both.ranks) load_state_dict(*rank, state_dict(*both.trained));
  EXPECT_EQ(both.step(), std::vector<std::string>(2));
}

}  // namespace
}  // namespace torchvq::different_starts_test
