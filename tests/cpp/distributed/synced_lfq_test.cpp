// LFQ and its stacks on several ranks, which are threads of this program. The oracle is one process
// with the concatenated batch: entropies are its entropies, averaged gradients its gradients.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/modules/residual_lfq.h>

#include "distributed/ranks.h"
#include "distributed/synced_modules_support.h"

namespace torchvq::synced_lfq_test {
namespace {

using testing::Batch;
using testing::batch_of;
using testing::group_of;
using testing::joined;
using testing::kDim;
using testing::on_ranks;

/// A quantizer and its forward, which returns all losses.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)> losses;
};

/// Makes a model whose ranks share `group`; without one, a model of one process.
using Make = std::function<Model(const std::optional<std::string>& group)>;

// Without the commitment loss, which is local to each rank; ranks share the entropies.
LFQOptions entropy_only(const std::optional<std::string>& group) {
  return LFQOptions().entropy_loss_weight(1).soft_clamp_input_value(4).process_group(group);
}

Make single(const std::function<void(LFQOptions&)>& configure) {
  return [configure](const std::optional<std::string>& group) {
    auto options = entropy_only(group).dim(kDim);
    configure(options);
    LFQ lfq(options);
    return Model{lfq.ptr(), [lfq](const auto& x, const auto& mask) mutable {
                   return lfq(x, 1.0, mask).entropy_aux_loss;
                 }};
  };
}

ResidualLFQOptions stack_options(int64_t dim, const std::optional<std::string>& group) {
  return ResidualLFQOptions(dim, 3, int64_t{1} << dim)
      .soft_clamp_input_value(4)
      .lfq(entropy_only(group));
}

/// `size`: that of latents near the boundary of the signs, where the entropies have a gradient.
template <typename Stack>
Model model_of(Stack stack, double size = 0.002) {
  return {stack.ptr(), [stack, size](const torch::Tensor& x, const torch::Tensor& mask) mutable {
            return stack(x * size, ResidualLFQForwardOptions().mask(mask)).loss;
          }};
}

Model residual(const std::optional<std::string>& group) {
  return model_of(ResidualLFQ(stack_options(kDim, group)));
}

Model dropping(const std::optional<std::string>& group) {
  return model_of(ResidualLFQ(stack_options(kDim, group).quantize_dropout(true)));
}

Model grouped(const std::optional<std::string>& group) {
  return model_of(GroupedResidualLFQ(
      GroupedResidualLFQOptions(kDim, stack_options(kDim / 2, group)).groups(2)));
}

Model with_first_level_in_evaluation(const std::optional<std::string>& group) {
  ResidualLFQ stack(stack_options(kDim, group));
  stack->levels[0]->eval();
  return model_of(stack, 1.0);  // the other levels see what the signs leave
}

Make with_group_in_evaluation(size_t number) {
  return [number](const std::optional<std::string>& group) {
    GroupedResidualLFQ groups(
        GroupedResidualLFQOptions(kDim, stack_options(kDim / 2, group)).groups(2));
    groups->rvqs[number]->eval();
    return model_of(groups);
  };
}

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = {
      {"default", single([](auto&) {})},
      {"codebooks", single([](auto& o) { o.codebook_size(8).num_codebooks(2); })},
      {"spherical", single([](auto& o) { o.spherical(true); })},
      {"rotated", single([](auto& o) { o.orthogonal_rotation(true); })},
      {"softplus", single([](auto& o) { o.experimental_softplus_entropy_loss(true); })},
      {"residual", residual},
      {"dropout", dropping},
      {"grouped", grouped},
      {"first_level_evaluates", with_first_level_in_evaluation},
      {"first_group_evaluates", with_group_in_evaluation(0)},
      {"last_group_evaluates", with_group_in_evaluation(1)},
  };
  return all;
}

struct Learned {
  torch::Tensor losses, gradient;
};

/// The losses of a float64 step, and the gradient of an encoder before the model.
Learned step_of(const Model& model, const Batch& batch) {
  const auto generator = at::detail::createCPUGenerator(11);
  const auto weight = torch::randn({kDim, kDim}, generator, torch::kDouble).requires_grad_();
  const auto losses = model.losses(batch.x.to(torch::kDouble).matmul(weight), batch.mask);
  losses.sum().backward();
  return {losses.detach(), weight.grad()};
}

/// Models of ranks with different seeds; the first has the oracle's seed.
std::vector<Model> models_of(const Make& make, int size) {
  std::vector<Model> models;
  for (int rank = 0; rank < size; ++rank) {
    torch::manual_seed(100 + rank);
    models.push_back(make(group_of(rank)));
  }
  return models;
}

class SyncedLFQ : public ::testing::TestWithParam<int> {};

TEST_P(SyncedLFQ, EntropiesAndGradientsAreThoseOfOneProcess) {
  const int size = GetParam();
  for (const auto& [name, make] : cases()) {
    SCOPED_TRACE(name);
    torch::manual_seed(100);
    const auto oracle = make(std::nullopt);
    const auto models = models_of(make, size);
    std::vector<std::vector<Learned>> learned(static_cast<size_t>(size));
    constexpr int kSteps = 4;
    const auto errors = on_ranks(size, [&](int rank, const std::string&) {
      for (int step = 0; step < kSteps; ++step) {
        const auto own = static_cast<size_t>(rank);
        learned[own].push_back(step_of(models[own], batch_of(step, size)[own]));
      }
    });
    ASSERT_EQ(errors, std::vector<std::string>(static_cast<size_t>(size)));
    for (int step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(step);
      const auto right = step_of(oracle, joined(batch_of(step, size)));
      EXPECT_GT(right.gradient.abs().max().item<double>(), 1e-6);
      auto average = torch::zeros_like(right.gradient);
      for (const auto& rank : learned) {
        const auto& own = rank.at(static_cast<size_t>(step));
        EXPECT_TRUE(torch::allclose(own.losses, right.losses, 1e-10, 1e-12));
        average += own.gradient / size;
      }
      EXPECT_TRUE(torch::allclose(average, right.gradient, 1e-8, 1e-12));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncedLFQ, ::testing::Values(2, 3));

TEST(SyncedLFQTest, AStepIsOneAllReduceAndEvaluationIsSilent) {
  for (const auto& [name, make] : cases()) {
    SCOPED_TRACE(name);
    const auto models = models_of(make, 2);
    const auto steps = [&](int count) {
      const auto errors = on_ranks(2, [&](int rank, const std::string&) {
        const auto own = static_cast<size_t>(rank);
        for (int step = 0; step < count; ++step) step_of(models[own], batch_of(0, 2)[own]);
      });
      EXPECT_EQ(errors, std::vector<std::string>(2));
    };
    distributed::reset_traffic();
    steps(3);
    EXPECT_EQ(distributed::traffic().all_reduces, 2 * 3);
    for (const auto& model : models) model.module->eval();
    distributed::reset_traffic();
    const auto errors = on_ranks(2, [&](int rank, const std::string&) {
      const auto own = static_cast<size_t>(rank);
      const auto batch = batch_of(0, 2)[own];
      models[own].losses(batch.x, batch.mask);
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
    EXPECT_EQ(distributed::traffic().bytes, 0);
  }
}

TEST(SyncedLFQTest, RanksWithOtherOptionsFindOut) {
  const std::vector<Model> models{cases().at("default")(group_of(0)),
                                  cases().at("spherical")(group_of(1))};
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    const auto own = static_cast<size_t>(rank);
    step_of(models[own], batch_of(0, 2)[own]);
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("spherical true"), std::string::npos) << error;
    EXPECT_NE(error.find("spherical false"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace torchvq::synced_lfq_test
