// Modules that train on several ranks, which are threads of this program. The oracle is one process
// with the concatenated batch; comparison is by bits, after every step.
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/modules/fsp.h>
#include <torchvq/modules/grouped_residual_vq.h>
#include <torchvq/modules/state_dict.h>

#include "distributed/ranks.h"
#include "distributed/synced_modules_support.h"

namespace torchvq::synced_modules_test {
namespace {

using testing::batch_of;
using testing::Configure;
using testing::group_of;
using testing::joined;
using testing::kDim;
using testing::on_ranks;
using testing::options_with;
using State = std::map<std::string, torch::Tensor>;

constexpr int kSteps = 24;

/// A module and its forward, which returns the indices.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&, const std::optional<torch::Tensor>&)> forward;
};

template <typename Call, typename Holder>
Model model_of(Holder holder) {
  return {holder.ptr(), [holder](const torch::Tensor& x, const auto& mask) mutable {
            return holder(x, Call().mask(mask)).indices;
          }};
}

/// Makes a model whose ranks share `group`; without one, a model of one process.
using Make = std::function<Model(const std::optional<std::string>& group)>;

Make single(const Configure& configure) {
  return [configure](const std::optional<std::string>& group) {
    return model_of<VectorQuantizeForwardOptions>(VectorQuantize(options_with(configure, group)));
  };
}

void dead(VectorQuantizeOptions& options) {
  options.kmeans_init(true).kmeans_iters(4).threshold_ema_dead_code(1);
}

ResidualVQOptions residual_options(const std::optional<std::string>& group) {
  return ResidualVQOptions(kDim).num_quantizers(4).codebook_size(24).vq(options_with(dead, group));
}

Make residual(const std::function<void(ResidualVQOptions&)>& configure) {
  return [configure](const std::optional<std::string>& group) {
    auto options = residual_options(group);
    configure(options);
    return model_of<ResidualVQForwardOptions>(ResidualVQ(options));
  };
}

Model grouped(const std::optional<std::string>& group) {
  return model_of<ResidualVQForwardOptions>(GroupedResidualVQ(
      GroupedResidualVQOptions(kDim).groups(2).rvq(residual_options(group).num_quantizers(2))));
}

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = {
      {"default", single([](auto&) {})},
      {"kmeans", single([](auto& o) { o.kmeans_init(true); })},
      {"dead_codes", single(dead)},
      {"dead_fraction",
       single([](auto& o) { o.kmeans_init(true).dead_code_threshold_fraction(0.5); })},
      {"cosine", single([](auto& o) {
         dead(o);
         o.use_cosine_sim(true);
       })},
      {"separate_heads", single([](auto& o) {
         dead(o);
         o.heads(2).codebook_dim(3).separate_codebook_per_head(true);
       })},
      {"affine", single([](auto& o) { o.affine_param(true).sync_affine_param(true); })},
      {"manual", single([](auto& o) { o.manual_ema_update(true); })},
      {"residual", residual([](auto&) {})},
      {"residual_sizes",
       residual([](auto& o) { o.num_quantizers(std::nullopt).codebook_size({8, 24, 16}); })},
      {"residual_dropout", residual([](auto& o) { o.quantize_dropout(true); })},
      {"residual_shared", residual([](auto& o) { o.shared_codebook(true); })},
      {"residual_beam", residual([](auto& o) { o.beam_size(3); })},
      {"grouped", grouped},
      {"sync_every", single([](auto& o) { o.sync_every(3); })},
      {"sync_every_dead_codes", single([](auto& o) {
         dead(o);
         o.sync_every(2);
       })},
      {"sync_every_dropout", residual([](auto& o) {
         o.quantize_dropout(true);
         o.vq().sync_every(4);
       })},
  };
  return all;
}

State state_of(const Model& model) {
  State copy;
  for (const auto& [name, value] : state_dict(*model.module)) copy[name] = value.clone();
  return copy;
}

// Data --------------------------------------------------------------------------------------------

/// Models of ranks with different seeds; the first has the oracle's seed.
std::vector<Model> models_of(const Make& make, int size) {
  std::vector<Model> models;
  for (int rank = 0; rank < size; ++rank) {
    torch::manual_seed(100 + rank);
    models.push_back(make(group_of(rank)));
  }
  return models;
}

void expect_same(const State& actual, const State& expected, int step) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
    if (name.find(".kept_") != std::string::npos) continue;  // local to each rank
    EXPECT_TRUE(torch::equal(actual.at(name), value)) << name << " after step " << step;
  }
}

class SyncedModules : public ::testing::TestWithParam<int> {};

TEST_P(SyncedModules, LearnWhatOneProcessLearns) {
  const int size = GetParam();
  for (const auto& [name, make] : cases()) {
    SCOPED_TRACE(name);
    torch::manual_seed(100);
    const auto oracle = make(std::nullopt);
    std::vector<State> states;
    std::vector<torch::Tensor> indices;
    for (int step = 0; step < kSteps; ++step) {
      const auto all = joined(batch_of(step, size));
      indices.push_back(oracle.forward(all.x, all.mask));
      states.push_back(state_of(oracle));
    }
    const auto models = models_of(make, size);
    std::vector<std::vector<torch::Tensor>> chosen(size);
    const auto errors = on_ranks(size, [&](int rank, const std::string&) {
      for (int step = 0; step < kSteps; ++step) {
        const auto own = batch_of(step, size)[rank];
        chosen[rank].push_back(models[rank].forward(own.x, own.mask));
        expect_same(state_of(models[rank]), states[step], step);
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(size));
    const int tokens = name == "grouped" ? 2 : 1;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<torch::Tensor> parts;
      for (const auto& rank : chosen) parts.push_back(rank.at(step));
      EXPECT_TRUE(torch::equal(torch::cat(parts, tokens), indices[step])) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncedModules, ::testing::Values(2, 3));

// Communication -----------------------------------------------------------------------------------

TEST(SyncedModulesTest, AStepIsOneAllReduceAndEvaluationIsSilent) {
  const auto stack =
      residual([](auto& o) { o.vq().threshold_ema_dead_code(0).kmeans_init(false); });
  for (const auto& make : {cases().at("default"), stack}) {
    const auto models = models_of(make, 2);
    distributed::reset_traffic();
    const auto errors = on_ranks(2, [&](int rank, const std::string&) {
      for (int step = 0; step < 8; ++step) {
        if (step == 5) models[rank].module->eval();
        models[rank].forward(batch_of(0, 2)[rank].x, std::nullopt);
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
    EXPECT_EQ(distributed::traffic().all_reduces, 2 * 5);
    EXPECT_EQ(distributed::traffic().all_gathers, 2 * 1) << "the handshake";
  }
}

TEST(SyncedModulesTest, StepsTogetherAreOneMessage) {
  const auto models = models_of(cases().at("sync_every"), 2);
  distributed::reset_traffic();
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    for (int step = 0; step < 7; ++step) {
      models[rank].forward(batch_of(0, 2)[rank].x, std::nullopt);
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(distributed::traffic().all_reduces, 2 * 2);
}

TEST(SyncedModulesTest, OneRankMayValidateAlone) {
  const auto models = models_of(cases().at("residual_dropout"), 2);
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    for (int step = 0; step < 3; ++step) {
      const auto own = batch_of(step, 2)[rank];
      if (rank == 0) {
        models[rank].module->eval();
        models[rank].forward(own.x, own.mask);
        models[rank].module->train();
      }
      models[rank].forward(own.x, own.mask);
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  expect_same(state_of(models[1]), state_of(models[0]), 3);
}

TEST(SyncedModulesTest, WithoutSynchronisationEachLearnsByItself) {
  const auto make = single([](auto& o) { o.sync_codebook(false); });
  const auto models = models_of(make, 2);
  torch::manual_seed(101);
  const auto alone = make(std::nullopt);
  distributed::reset_traffic();
  on_ranks(2, [&](int rank, const std::string&) {
    models[rank].forward(batch_of(0, 2)[rank].x, std::nullopt);
  });
  EXPECT_EQ(distributed::traffic().bytes, 0);
  alone.forward(batch_of(0, 2)[1].x, std::nullopt);
  expect_same(state_of(models[1]), state_of(alone), 0);
}

TEST(SyncedModulesTest, FloatReductionIsCloseAndEqualOnAllRanks) {
  const auto make = single([](auto& o) { o.reduction("float"); });
  const auto models = models_of(make, 2);
  torch::manual_seed(100);
  const auto oracle = make(std::nullopt);
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    for (int step = 0; step < 4; ++step) {
      models[rank].forward(batch_of(step, 2)[rank].x, std::nullopt);
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  for (int step = 0; step < 4; ++step) oracle.forward(joined(batch_of(step, 2)).x, std::nullopt);
  const auto expected = state_of(oracle);
  for (const auto& [name, value] : state_of(models[0])) {
    EXPECT_TRUE(torch::allclose(value, expected.at(name), 1e-5, 1e-6)) << name;
  }
  expect_same(state_of(models[1]), state_of(models[0]), 3);
}

TEST(SyncedModulesTest, KmeansOfRankZeroIsEverybodys) {
  const auto models = models_of(single([](auto& o) { o.kmeans_init(true).sync_kmeans(false); }), 2);
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    models[rank].forward(batch_of(0, 2)[rank].x, std::nullopt);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  expect_same(state_of(models[1]), state_of(models[0]), 0);
}

TEST(SyncedModulesTest, TheOwnOptimizerOfACodebookStepsAlike) {
  const auto sgd = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1));
  };
  const auto learnable = [&](VectorQuantizeOptions& o) {
    o.learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(sgd);
  };
  for (const auto& make : {single(learnable), residual([&](auto& o) {
                             o.vq().kmeans_init(false).threshold_ema_dead_code(0);
                             learnable(o.vq());
                           }),
                           residual([&](auto& o) {
                             o.shared_codebook(true).vq().kmeans_init(false);
                             o.vq().threshold_ema_dead_code(0);
                             learnable(o.vq());
                           })}) {
    const auto models = models_of(make, 2);
    torch::manual_seed(100);
    const auto oracle = make(std::nullopt);
    const auto errors = on_ranks(2, [&](int rank, const std::string&) {
      for (int step = 0; step < 3; ++step) {
        models[rank].forward(batch_of(step, 2)[rank].x, std::nullopt);
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
    for (int step = 0; step < 3; ++step) oracle.forward(joined(batch_of(step, 2)).x, std::nullopt);
    expect_same(state_of(models[1]), state_of(models[0]), 2);
    for (const auto& [name, value] : state_of(oracle)) {
      // The mean of the ranks' means is rounded in another order than one mean.
      EXPECT_TRUE(torch::allclose(value, state_of(models[0]).at(name), 1e-4, 1e-5)) << name;
    }
  }
}

// Faults ------------------------------------------------------------------------------------------

TEST(SyncedModulesTest, UnequalCodebooksAreASentenceOnEveryRank) {
  const std::vector<Make> makes = {single([](auto&) {}), residual([](auto&) {}),
                                   residual([](auto& o) { o.shared_codebook(true); })};
  const std::vector<std::string> labels = {"VectorQuantize(dim=6", "ResidualVQ(dim=6",
                                           "ResidualVQ(dim=6"};
  for (size_t kind = 0; kind < makes.size(); ++kind) {
    std::vector<Model> models{makes[kind](group_of(0))};
    models.push_back(kind == 0 ? single([](auto& o) { o.codebook_size(48); })(group_of(1))
                               : residual([&](auto& o) {
                                   o.codebook_size(48).shared_codebook(kind == 2);
                                 })(group_of(1)));
    const auto before = state_of(models[0]);
    const auto errors = on_ranks(2, [&](int rank, const std::string&) {
      models[rank].forward(batch_of(0, 2)[1].x, std::nullopt);
    });
    for (const auto& error : errors) {
      EXPECT_NE(error.find(labels[kind]), std::string::npos) << error;
      EXPECT_NE(error.find("24 codes"), std::string::npos) << error;
      EXPECT_NE(error.find("48 codes"), std::string::npos) << error;
    }
    expect_same(state_of(models[0]), before, 0);
  }
}

/// Trains rank 1 with another model than rank 0; every rank must hear of both, and keep its state.
void expect_a_sentence(const Make& usual, const Make& other, const std::string& first,
                       const std::string& second) {
  const std::vector<Model> models{usual(group_of(0)), other(group_of(1))};
  const std::vector<State> before{state_of(models[0]), state_of(models[1])};
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    models[rank].forward(batch_of(0, 2)[1].x, std::nullopt);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(errors[rank].find("the same quantizer"), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find(first), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find(second), std::string::npos) << errors[rank];
    expect_same(state_of(models[rank]), before[rank], 0);
  }
}

TEST(SyncedModulesTest, OptionsThatDecideOnMessagesMustBeEqual) {
  const auto kmeans = [](auto& o) { o.kmeans_init(true); };
  const auto with = [&](const Configure& configure) {
    return single([kmeans, configure](auto& o) {
      kmeans(o);
      configure(o);
    });
  };
  const auto sgd = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1));
  };
  const std::vector<std::tuple<Configure, std::string, std::string>> rows = {
      {[](auto& o) { o.sync_kmeans(false); }, "over ranks true", "over ranks false"},
      {[](auto& o) { o.freeze_codebook(true); }, "frozen false", "frozen true"},
      {[](auto& o) { o.decay(0.8000001); }, "decay 0.8", "decay 0.8000001"},
      {[](auto& o) { o.ema_update(false); }, "moving averages true", "moving averages false"},
      {[](auto& o) { o.codebook_diversity_loss_weight(0.5); }, "diversity 0.0 ", "diversity 0.5 "},
      {[&](auto& o) {
         o.learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(sgd);
       },
       "own optimizer none", "own optimizer torch::optim::SGD of rate 0.1"},
      {[](auto& o) { o.affine_param(true).sync_affine_param(true); }, "affine false",
       "affine true"},
  };
  for (const auto& [configure, first, second] : rows) {
    expect_a_sentence(with([](auto&) {}), with(configure), first, second);
  }
  expect_a_sentence(residual([](auto&) {}), residual([](auto& o) { o.quantize_dropout(true); }),
                    "dropout false", "dropout true");
  // A difference beyond the room of a note.
  expect_a_sentence(residual([](auto& o) {
                      o.num_quantizers(std::nullopt).codebook_size({8, 9, 8, 9, 8, 9, 8});
                    }),
                    residual([](auto& o) {
                      o.num_quantizers(std::nullopt).codebook_size({8, 9, 8, 9, 8, 9, 9});
                    }),
                    "hash", "hash");
}

TEST(SyncedModulesTest, ADtypeOfOneRankIsASentence) {
  const auto models = models_of(cases().at("default"), 2);
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    const auto x = batch_of(0, 2)[1].x;
    models[rank].forward(rank == 0 ? x : x.to(torch::kDouble), std::nullopt);
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("rank 0: float32 tokens"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1: float64 tokens"), std::string::npos) << error;
  }
}

TEST(SyncedModulesTest, AFrozenCallThatSendsIsAgreedOnOnce) {
  const auto make = [](int rank) {
    return VectorQuantize(VectorQuantizeOptions(kDim)
                              .codebook_size(24)
                              .process_group(group_of(rank))
                              .codebook_diversity_loss_weight(0.1));
  };
  torch::manual_seed(0);
  std::vector<VectorQuantize> models{make(0), make(1)};
  distributed::reset_traffic();
  const auto frozen = [](bool is) { return VectorQuantizeForwardOptions().freeze_codebook(is); };
  auto errors = on_ranks(2, [&](int rank, const std::string&) {
    for (int step = 0; step < 6; ++step) {
      models[rank]->forward(batch_of(0, 2)[rank].x, frozen(step % 2 == 1));
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(distributed::traffic().all_gathers, 2 * 2);
  models = {make(0), make(1)};
  errors = on_ranks(2, [&](int rank, const std::string&) {
    models[rank]->forward(batch_of(0, 2)[rank].x, frozen(rank == 1));
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("rank 1: frozen, sharing probabilities"), std::string::npos) << error;
  }
}

TEST(SyncedModulesTest, FSPsOfOtherLevelsAreASentence) {
  std::vector<FSP> models;
  for (int rank = 0; rank < 2; ++rank) {
    const auto levels = rank == 0 ? std::vector<int64_t>{5, 5, 5} : std::vector<int64_t>{5, 5};
    models.emplace_back(FSPOptions(levels).dim(kDim).process_group(group_of(rank)));
  }
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    const auto before = models[rank]->rng.clone();
    EXPECT_THROW(models[rank]->forward(batch_of(0, 2)[1].x), c10::ValueError);
    EXPECT_TRUE(torch::equal(models[rank]->rng, before));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(SyncedModulesTest, RanksWhoseStateDiffersAreToldAndKeepIt) {
  const auto models = models_of(cases().at("default"), 2);
  std::vector<State> before(2);
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    const auto x = batch_of(0, 2)[rank].x;
    models[rank].forward(x, std::nullopt);
    if (rank == 1) state_dict(*models[rank].module).at("_codebook.cluster_size")[0][0] += 1e-3;
    before[rank] = state_of(models[rank]);
    models[rank].forward(x, std::nullopt);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(errors[rank].find("VectorQuantize(dim=6, codebook_size=24)"), std::string::npos)
        << errors[rank];
    expect_same(state_of(models[rank]), before[rank], 1);
  }
}

TEST(SyncedModulesTest, ARankThatEvaluatesIsAnErrorWithAReason) {
  const auto models = models_of(cases().at("residual"), 2);
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    if (rank == 1) models[rank].module->eval();
    models[rank].forward(batch_of(0, 2)[1].x, std::nullopt);
  });
  EXPECT_NE(errors[0].find("it evaluates"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "");
}

// Groups ------------------------------------------------------------------------------------------

TEST(SyncedModulesTest, TheDefaultGroupIsAskedForAtEachTrainingStep) {
  const auto model = cases().at("default")(std::nullopt);
  const auto x = batch_of(0, 2)[0].x;
  model.forward(x, std::nullopt);
  distributed::set_default_group("a group that is gone");
  EXPECT_EQ(distributed::default_group(), "a group that is gone");
  EXPECT_THROW(model.forward(x, std::nullopt), c10::ValueError);
  ::setenv("TORCHVQ_SYNC", "0", 1);
  EXPECT_NO_THROW(model.forward(x, std::nullopt));
  ::unsetenv("TORCHVQ_SYNC");
  model.module->eval();
  EXPECT_NO_THROW(model.forward(x, std::nullopt));
  distributed::set_default_group("");
  model.module->train();
  EXPECT_NO_THROW(model.forward(x, std::nullopt));
}

TEST(SyncedModulesTest, ReductionsOfAnotherNameAreRefused) {
  EXPECT_THROW(single([](auto& o) { o.reduction("int8"); })(std::nullopt), c10::ValueError);
}

}  // namespace
}  // namespace torchvq::synced_modules_test
