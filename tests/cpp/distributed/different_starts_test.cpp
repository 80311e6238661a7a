// Ranks whose modules differ: one of them has loaded a checkpoint, has another optimizer, or evaluates
// a part.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <torchvq/modules/grouped_residual_vq.h>
#include <torchvq/modules/hierarchical_vq.h>
#include <torchvq/modules/state_dict.h>

#include "distributed/ranks.h"
#include "distributed/synced_modules_support.h"

namespace torchvq::different_starts_test {
namespace {

using testing::batch_of;
using testing::Configure;
using testing::group_of;
using testing::kDim;
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
        error.find(
            "rank 0: own optimizer torch::optim::Adam of rate 0.05 with loaded state; rank 1: "
            "own optimizer torch::optim::Adam of rate 0.05"),
        std::string::npos)
        << error;
  }
  for (auto& rank : both.ranks) load_state_dict(*rank, state_dict(*both.trained));
  EXPECT_EQ(both.step(), std::vector<std::string>(2));
}

CodebookOptimizer sgd(double rate) {
  return [rate](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(rate));
  };
}

void expect_each_has(const std::vector<std::string>& errors, const std::string& part) {
  for (const auto& error : errors) EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST(DifferentStartsTest, OwnOptimizersHaveOneRateAtTheirStart) {
  const std::string difference =
      "rank 0: own optimizer torch::optim::SGD of rate 0.5; rank 1: own optimizer "
      "torch::optim::SGD of rate 0.1";
  const auto options = [](int rank, double rate) {
    return VectorQuantizeOptions(kDim)
        .codebook_size(24)
        .process_group(group_of(rank))
        .learnable_codebook(true)
        .ema_update(false)
        .in_place_codebook_optimizer(sgd(rate));
  };
  const auto x = batch_of(0, 2)[1].x;
  expect_each_has(on_ranks(2,
                           [&](int rank, const std::string&) {
                             VectorQuantize(options(rank, rank == 0 ? 0.5 : 0.1))->forward(x);
                           }),
                  difference);
  for (const bool shared : {false, true}) {
    expect_each_has(on_ranks(2,
                             [&](int rank, const std::string&) {
                               ResidualVQ(ResidualVQOptions(kDim)
                                              .num_quantizers(2)
                                              .codebook_size(24)
                                              .shared_codebook(shared)
                                              .vq(options(rank, rank == 0 ? 0.5 : 0.1)))
                                   ->forward(x);
                             }),
                    difference);
  }
  const auto same = on_ranks(
      2, [&](int rank, const std::string&) { VectorQuantize(options(rank, 0.5))->forward(x); });
  EXPECT_EQ(same, std::vector<std::string>(2));
}

TEST(DifferentStartsTest, OwnOptimizersHaveTheSameOptions) {
  namespace optim = torch::optim;
  using Parameters = std::vector<torch::Tensor>;
  using Made = std::shared_ptr<optim::Optimizer>;
  using Make = std::function<Made(const Parameters&, int)>;
  const std::vector<std::pair<Make, std::string>> rows = {
      {[](const Parameters& of, int rank) -> Made {
         return std::make_shared<optim::SGD>(of, optim::SGDOptions(0.1).momentum(0.9 * rank));
       },
       "rank 0: momentum 0.0; rank 1: momentum 0.9"},
      {[](const Parameters& of, int rank) -> Made {
         return std::make_shared<optim::SGD>(of, optim::SGDOptions(rank == 0 ? 0.1 : 0.10000001));
       },
       "rank 0: own optimizer torch::optim::SGD of rate 0.1; rank 1: own optimizer "
       "torch::optim::SGD of rate 0.10000001"},
      {[](const Parameters& of, int rank) -> Made {
         const auto betas = std::make_tuple(0.9, rank == 0 ? 0.999 : 0.9);
         return std::make_shared<optim::Adam>(of, optim::AdamOptions().betas(betas));
       },
       "rank 0: betas 0.9 and 0.999; rank 1: betas 0.9 and 0.9"},
      {[](const Parameters& of, int rank) -> Made {
         return std::make_shared<optim::AdamW>(of, optim::AdamWOptions().weight_decay(rank));
       },
       "rank 0: weight_decay 0.0; rank 1: weight_decay 1.0"},
      {[](const Parameters& of, int rank) -> Made {
         return std::make_shared<optim::RMSprop>(of, optim::RMSpropOptions().centered(rank == 1));
       },
       "rank 0: centered False; rank 1: centered True"},
      {[](const Parameters& of, int rank) -> Made {
         return std::make_shared<optim::Adagrad>(of, optim::AdagradOptions().lr_decay(rank));
       },
       "rank 0: lr_decay 0.0; rank 1: lr_decay 1.0"},
  };
  const auto x = batch_of(0, 2)[1].x;
  for (const auto& [make, difference] : rows) {
    const auto train = [x, make = make](int rank, const std::string&) {
      VectorQuantize(
          VectorQuantizeOptions(kDim)
              .codebook_size(24)
              .process_group(group_of(rank))
              .learnable_codebook(true)
              .ema_update(false)
              .in_place_codebook_optimizer([&](const Parameters& of) { return make(of, rank); }))
          ->forward(x);
    };
    expect_each_has(on_ranks(2, train), difference);
  }
}

// A part that evaluates on rank 1 -----------------------------------------------------------------

/// Trains two models that share a group each, after `change` of the second one; both must hear of
/// it. Then trains two after `change` of both.
template <typename Model>
void expect_a_sentence(const std::function<Model(int)>& make,
                       const std::function<void(Model&)>& change, const torch::Tensor& x,
                       const std::string& part) {
  for (const bool both : {false, true}) {
    torch::manual_seed(0);
    std::vector<Model> models{make(0), make(1)};
    const auto errors = on_ranks(2, [&](int rank, const std::string&) {
      if (both || rank == 1) change(models[rank]);
      for (int step = 0; step < 2; ++step) models[rank]->forward(x);
    });
    if (both) {
      EXPECT_EQ(errors, std::vector<std::string>(2));
    } else {
      expect_each_has(errors, part);
    }
  }
}

ResidualVQOptions stack_options(int rank, bool kmeans) {
  return ResidualVQOptions(kDim).num_quantizers(3).codebook_size(24).vq(options_with(
      [&](auto& o) { o.kmeans_init(kmeans).threshold_ema_dead_code(1); }, group_of(rank)));
}

TEST(DifferentStartsTest, ALevelThatEvaluatesOnOneRankIsASentence) {
  for (const bool kmeans : {false, true}) {
    expect_a_sentence<ResidualVQ>([&](int rank) { return ResidualVQ(stack_options(rank, kmeans)); },
                                  [](auto& stack) { stack->levels[1]->eval(); },
                                  batch_of(0, 2)[1].x, "rank 1: evaluating levels 1");
  }
}

TEST(DifferentStartsTest, AScaleThatEvaluatesOnOneRankIsASentence) {
  const auto make = [](int rank) {
    return HierarchicalVQ(HierarchicalVQOptions(kDim, 8, {1, 2, 4})
                              .accept_image_fmap(true)
                              .shared_codebook(false)
                              .process_group(group_of(rank)));
  };
  expect_a_sentence<HierarchicalVQ>(
      make, [](auto& module) { module->vqs[2]->eval(); }, torch::ones({6, kDim, 4, 4}),
      "rank 1: evaluating levels 2");
}

TEST(DifferentStartsTest, ALevelWithoutAveragesOnOneRankIsASentence) {
  expect_a_sentence<ResidualVQ>(
      [](int rank) { return ResidualVQ(stack_options(rank, /*kmeans=*/false)); },
      [](auto& stack) { stack->levels[1]->options.ema_update(false); }, batch_of(0, 2)[1].x,
      "rank 1: without averages 1");
}

TEST(DifferentStartsTest, AnOptionOfALaterLevelOnOneRankIsASentence) {
  const auto x = batch_of(0, 2)[1].x;
  const auto expect = [&](const Configure& configure,
                          const std::function<void(VectorQuantizeImpl&)>& change,
                          const std::string& part) {
    expect_a_sentence<ResidualVQ>(
        [&](int rank) {
          return ResidualVQ(ResidualVQOptions(kDim).num_quantizers(3).codebook_size(24).vq(
              options_with(configure, group_of(rank))));
        },
        [&](auto& stack) { change(*stack->levels[2]); }, x, part);
  };
  const Configure kmeans = [](auto& o) { o.kmeans_init(true); };
  const Configure affine = [](auto& o) { o.affine_param(true); };
  const Configure by_gradient = [](auto& o) {
    o.learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(sgd(0.1));
  };
  expect(
      kmeans, [](auto& level) { level.codebook_state->options.sync_kmeans(false); },
      "level 2 with k-means of 10 iterations over ranks false");
  expect(
      kmeans, [](auto& level) { level.codebook_state->options.kmeans_iters(3); },
      "level 2 with k-means of 3 iterations");
  expect(
      affine, [](auto& level) { level.codebook_state->options.sync_affine_param(true); },
      "level 2");
  expect(
      by_gradient, [](auto& level) { level.options.manual_in_place_optimizer_update(true); },
      "manual true");
}

HierarchicalVQ hierarchy(int rank, bool shared, int64_t sync_every = 1) {
  return HierarchicalVQ(HierarchicalVQOptions(kDim, 8, {1, 2, 4})
                            .accept_image_fmap(true)
                            .shared_codebook(shared)
                            .kmeans_init(false)
                            .sync_every(sync_every)
                            .process_group(group_of(rank)));
}

TEST(DifferentStartsTest, ScalesThatLearnOtherwiseOnOneRankAreASentence) {
  const auto x = torch::ones({6, kDim, 4, 4});
  for (const bool shared : {false, true}) {
    expect_a_sentence<HierarchicalVQ>(
        [&](int rank) { return hierarchy(rank, shared); },
        [](auto& module) { module->options.freeze_codebook(true); }, x,
        shared ? "rank 1: frozen scales 0" : "rank 1: frozen scales 0 1 2");
  }
  for (const int64_t sync_every : {1, 2}) {
    const auto make = [&](int rank) { return hierarchy(rank, /*shared=*/false, sync_every); };
    expect_a_sentence<HierarchicalVQ>(
        make, [](auto& module) { module->vqs[1]->options.freeze_codebook(true); }, x,
        "rank 1: frozen scales 1");
    expect_a_sentence<HierarchicalVQ>(
        make, [](auto& module) { module->vqs[1]->options.ema_update(false); }, x,
        "rank 1: without averages 1");
  }
}

TEST(DifferentStartsTest, ACallOfOneRankThatFreezesAllScalesIsSilent) {
  const auto x = torch::ones({6, kDim, 4, 4});
  std::vector<HierarchicalVQ> models{hierarchy(0, /*shared=*/false),
                                     hierarchy(1, /*shared=*/false)};
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    models[rank]->forward(x);
    if (rank == 0) models[rank]->forward(x, HierarchicalVQForwardOptions().freeze_codebook(true));
    models[rank]->forward(x);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(DifferentStartsTest, AGroupThatEvaluatesOnOneRankIsASentence) {
  const auto make = [](int rank) {
    return GroupedResidualVQ(
        GroupedResidualVQOptions(kDim).groups(2).rvq(stack_options(rank, /*kmeans=*/true)));
  };
  for (const int group : {0, 1}) {
    expect_a_sentence<GroupedResidualVQ>(
        make, [&](auto& model) { model->rvqs[group]->eval(); }, batch_of(0, 2)[1].x,
        "training groups " + std::to_string(1 - group));
  }
}

}  // namespace
}  // namespace torchvq::different_starts_test
