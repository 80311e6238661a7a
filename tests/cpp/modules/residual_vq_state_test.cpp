// State of the residual stacks: names, checkpoints, copies, casts.
#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "expect_throw.h"
#include "modules/residual_vq_support.h"

namespace torchvq::residual_vq_state_test {
namespace {

using namespace torchvq::testing;

StackOptions with_adam(bool shared) {
  return with([shared](auto& o) {
    o.shared_codebook(shared).vq().learnable_codebook(true).ema_update(false);
    o.vq().in_place_codebook_optimizer([](std::vector<torch::Tensor> parameters) {
      return std::make_shared<torch::optim::Adam>(std::move(parameters),
                                                  torch::optim::AdamOptions(0.05));
    });
  });
}

std::map<std::string, StackOptions> configurations() {
  auto all = stack_configurations();
  all.emplace("adam", with_adam(false));
  all.emplace("adam_shared", with_adam(true));
  return all;
}

/// A resumed run must continue like the uninterrupted one.
void expect_continues_alike(ResidualVQ& resumed, ResidualVQ& original) {
  expect_same_state(state_of(*resumed), state_of(*original));
  train_stack(resumed, 3, 5);
  train_stack(original, 3, 5);
  expect_same_state(state_of(*resumed), state_of(*original));
}

ResidualVQ copy_of_stack(const ResidualVQ& stack) {
  return ResidualVQ(std::dynamic_pointer_cast<ResidualVQImpl>(stack->clone()));
}

TEST(ResidualVQStateTest, StateDictContinuesTheRun) {
  for (const auto& [name, options] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make_stack(options), resumed = make_stack(options, 7);
    train_stack(original, 0, 3);
    load_state_dict(*resumed, state_of(*original));
    expect_continues_alike(resumed, original);
  }
}

TEST(ResidualVQStateTest, TorchSaveContinuesTheRun) {
  for (const auto& [name, options] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make_stack(options), resumed = make_stack(options, 7);
    train_stack(original, 0, 3);
    std::stringstream file;
    torch::save(original, file);
    torch::load(resumed, file);
    expect_continues_alike(resumed, original);
  }
}

TEST(ResidualVQStateTest, CloneContinuesTheRunOnItsOwn) {
  for (const auto& [name, options] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make_stack(options);
    train_stack(original, 0, 3);
    const auto before = state_of(*original);
    auto copy = copy_of_stack(original), second = copy_of_stack(original);
    train_stack(copy, 3, 5);
    expect_same_state(state_of(*original), before);
    expect_continues_alike(second, original);
    expect_same_state(state_of(*copy), state_of(*original));
  }
}

TEST(ResidualVQStateTest, CopiesHaveTheOptionsOfTheirLevels) {
  auto original = make_stack(stack_options());
  original->levels[0]->options.commitment_weight(7);
  original->levels[1]->options.freeze_codebook(true);
  original->levels[2]->codebook_state->options.decay(0.1);
  auto copy = copy_of_stack(original);
  const auto frozen = copy->codebooks()[1].clone();
  const auto x = normal({2, 30, kDim});
  EXPECT_TRUE(at::equal(copy(x).loss, original(x).loss));
  expect_continues_alike(copy, original);
  EXPECT_TRUE(at::equal(copy->codebooks()[1], frozen));

  GroupedResidualVQ grouped(GroupedResidualVQOptions(kDim).groups(2).rvq(stack_options()));
  grouped->rvqs[0]->options.quantize_dropout(true);
  grouped->rvqs[1]->levels[0]->codebook_state->options.decay(0.1);
  const auto groups = std::dynamic_pointer_cast<GroupedResidualVQImpl>(grouped->clone());
  EXPECT_TRUE(groups->rvqs[0]->options.quantize_dropout());
  EXPECT_EQ(groups->rvqs[1]->levels[0]->codebook_state->options.decay(), 0.1);
}

TEST(ResidualVQStateTest, StacksOfOtherLevelsAreNotCopied) {
  const auto refuse = [](const auto& change, const std::string& fragment) {
    auto stack = make_stack(stack_options());
    change(*stack);
    expect_throw_with<c10::ValueError>([&] { stack->clone(); }, fragment);
  };
  refuse([](auto& stack) { stack.levels.resize(2, nullptr); },
         "clone: expected levels to be the 3 of construction, but got 2");
  refuse([](auto& stack) { stack.levels.push_back(stack.levels[0]); }, "but got 4");
  const auto bare = VectorQuantizeOptions(kDim).codebook_size(kCodes);
  refuse(
      [&](auto& stack) {
        stack.named_children()["layers"]->template as<torch::nn::ModuleListImpl>()->push_back(
            VectorQuantize(bare));
      },
      "additional ones: layers.3, layers.3._codebook");
  GroupedResidualVQ grouped(GroupedResidualVQOptions(kDim).groups(2).rvq(stack_options()));
  grouped->rvqs.resize(1, nullptr);
  expect_throw_with<c10::ValueError>([&] { grouped->clone(); },
                                     "clone: expected rvqs to be the 2 of construction, but got 1");

  auto other = make_stack(stack_options(), 7);
  const auto before = state_of(*other);
  const auto shorter = make_stack(StackOptions(kDim).num_quantizers(2).codebook_size(kCodes));
  EXPECT_THROW(other->copy_state(*shorter, std::nullopt), c10::ValueError);
  expect_same_state(state_of(*other), before);
}

TEST(ResidualVQStateTest, CloneInsideAModelUsesItsOwnTensors) {
  struct ModelImpl : torch::nn::Cloneable<ModelImpl> {
    explicit ModelImpl(StackOptions given) : given(std::move(given)) { reset(); }
    void reset() override { quantizer = register_module("quantizer", make_stack(given)); }
    StackOptions given;
    ResidualVQ quantizer{nullptr};
  };
  for (const auto& name : {"shared", "implicit", "projections", "adam_shared"}) {
    SCOPED_TRACE(name);
    auto original = std::make_shared<ModelImpl>(configurations().at(name));
    train_stack(original->quantizer, 0, 3);
    const auto copy = std::dynamic_pointer_cast<ModelImpl>(original->clone());
    expect_continues_alike(copy->quantizer, original->quantizer);
    EXPECT_TRUE(state_dict(*copy).contains("quantizer.layers.2._codebook.embed"));
  }
}

TEST(ResidualVQStateTest, CopiedGroupsKeepTheirModes) {
  GroupedResidualVQ original(GroupedResidualVQOptions(kDim).groups(2).rvq(stack_options()));
  original->rvqs[0]->eval();
  const auto copy = std::dynamic_pointer_cast<GroupedResidualVQImpl>(original->clone());
  EXPECT_TRUE(copy->is_training() && copy->rvqs[1]->is_training());
  EXPECT_FALSE(copy->rvqs[0]->is_training());
}

TEST(ResidualVQStateTest, GroupsAreCopiedAndSaved) {
  const auto options =
      GroupedResidualVQOptions(kDim).groups(2).rvq(stack_options().implicit_neural_codebook(true));
  GroupedResidualVQ original(options), resumed(options);
  const auto x = normal({2, 30, kDim});
  original(x);
  GroupedResidualVQ copy(std::dynamic_pointer_cast<GroupedResidualVQImpl>(original->clone()));
  load_state_dict(*resumed, state_of(*original));
  for (auto* module : {&original, &copy, &resumed}) (*module)(x);
  expect_same_state(state_of(*copy), state_of(*original));
  expect_same_state(state_of(*resumed), state_of(*original));
  EXPECT_TRUE(state_of(*original).contains("rvqs.1.mlps.0.layers.3.2.weight"));
}

TEST(ResidualVQStateTest, ASharedCodebookHasOneParameterAndANameInEachLevel) {
  auto stack = make_stack(configurations().at("shared_learnable"));
  EXPECT_EQ(stack->parameters().size(), 1U);
  const auto state = state_dict(*stack);
  for (const auto* name : {"layers.0._codebook.embed", "layers.2._codebook.embed"}) {
    ASSERT_TRUE(state.contains(name)) << name;
    EXPECT_EQ(state.at(name).data_ptr(), stack->parameters()[0].data_ptr());
  }
  stack->to(at::kDouble);
  EXPECT_EQ(stack->levels[2]->codebook().scalar_type(), at::kDouble);
}

TEST(ResidualVQStateTest, CheckpointOfTheReferenceLoads) {
  for (const auto& name : {"default", "shared"}) {
    auto source = make_stack(configurations().at(name));
    train_stack(source, 0, 2);
    auto state = state_of(*source);
    std::erase_if(state, [](const auto& item) { return item.first.ends_with(".rng"); });
    auto stack = make_stack(configurations().at(name), 7);
    load_state_dict(*stack, state);
    for (int64_t level = 0; level < kLevels; ++level) {
      EXPECT_TRUE(at::equal(stack->codebooks()[level], source->codebooks()[level]));
    }
  }
}

// The reference saves uninitialised memory for the levels that dropout has left out.
TEST(ResidualVQStateTest, StatisticsThatNoStepHasSetTakeDefaults) {
  const auto options = with([](auto& o) { o.vq().affine_param(true); });
  auto state = state_of(*make_stack(options));
  for (auto& [name, value] : state) {
    if (name.ends_with("_mean") || name.ends_with("_variance")) value.fill_(NAN);
  }
  auto stack = make_stack(options, 7);
  load_state_dict(*stack, state);
  EXPECT_TRUE(at::equal(stack->levels[1]->codebook(), state["layers.1._codebook.embed"][0]));
}

TEST(ResidualVQStateTest, CastsKeepTheAveragesWide) {
  auto stack = make_stack(stack_options().codebook_dim(5));
  train_stack(stack, 0, 1);
  stack->to(at::kBFloat16);
  EXPECT_EQ(stack->project_in->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(stack->levels[1]->codebook_state->embed_avg.scalar_type(), at::kFloat);
  const auto output = stack(normal({2, 5, kDim}).to(at::kBFloat16));
  EXPECT_EQ(output.quantized.scalar_type(), at::kBFloat16);
  EXPECT_EQ(output.loss.scalar_type(), at::kFloat);
  EXPECT_TRUE(output.quantized.isfinite().all().item<bool>());
}

TEST(ResidualVQStateTest, OwnOptimizersDoNotStepWithoutAToken) {
  for (const bool shared : {false, true}) {
    auto stack = make_stack(with_adam(shared));
    train_stack(stack, 0, 2);  // the optimizer has moments, by which it would move codes
    const auto before = state_of(*stack);
    const auto x = normal({2, 5, kDim});
    stack(normal({2, 0, kDim}));
    stack(x, StackCall().mask(at::zeros({2, 5}, at::kBool)));
    for (int64_t level = 0; level < kLevels; ++level) {
      const auto name = "layers." + std::to_string(level) + "._codebook.embed";
      EXPECT_TRUE(at::equal(before.at(name), state_of(*stack).at(name))) << name;
    }
  }
}

TEST(ResidualVQStateTest, ABridgeThatFailsInALaterLevelLeavesTheState) {
  const auto x = normal({2, 30, kDim});
  for (const bool affine : {false, true}) {
    auto options = stack_options();
    options.vq().kmeans_init(!affine).affine_param(affine).vq_bridge(
        torch::nn::AnyModule(FragileBridge()));
    expect_undone(ResidualVQ(options), x, 1);
    expect_undone(ResidualVQ(StackOptions(options).beam_size(3)), x, 1);
    expect_undone(ResidualVQ(StackOptions(options).shared_codebook(true)), x, 1);
    expect_undone(GroupedResidualVQ(GroupedResidualVQOptions(kDim).groups(2).rvq(options)), x,
                  kLevels + 1);
  }
}

TEST(ResidualVQStateTest, NoGroupLearnsBeforeABridgeFails) {
  auto options = stack_options();
  options.vq().threshold_ema_dead_code(2).vq_bridge(torch::nn::AnyModule(FragileBridge()));
  expect_undone(GroupedResidualVQ(GroupedResidualVQOptions(kDim).groups(2).rvq(options)),
                normal({2, 30, kDim}), kLevels + 1);
}

TEST(ResidualVQStateTest, GroupsThatShareCodebooksNameTheirBridgeUnderEveryLevel) {
  auto options = with([](auto& o) {
    o.shared_codebook(true).vq().learnable_codebook(true).ema_update(false);
    o.vq().vq_bridge(torch::nn::AnyModule(torch::nn::Linear(kDim / 2, kDim / 2)));
  });
  const auto made = [&](uint64_t seed) {
    at::manual_seed(seed);
    auto given = options;
    given.vq().vq_bridge(given.vq().vq_bridge().clone());
    return GroupedResidualVQ(GroupedResidualVQOptions(kDim).groups(2).rvq(given));
  };
  auto one = made(0), two = made(1);
  const auto state = state_of(*one);
  for (const char* stack : {"rvqs.0.", "rvqs.1."}) {
    for (int64_t level = 0; level < kLevels; ++level) {
      const auto name = stack + ("layers." + std::to_string(level)) + "._codebook.vq_bridge.weight";
      EXPECT_TRUE(state.contains(name)) << name;
    }
  }
  load_state_dict(*two, state);
  const auto x = normal({2, 5, kDim});
  one->eval(), two->eval();
  EXPECT_TRUE(at::equal(one(x).quantized, two(x).quantized));
}

TEST(ResidualVQStateTest, ModulesSayWhatTheyAre) {
  std::stringstream text;
  text << make_stack(stack_options()) << "\n"
       << GroupedResidualVQ(GroupedResidualVQOptions(kDim).groups(2).rvq(stack_options()));
  EXPECT_NE(text.str().find("torchvq::ResidualVQ(dim=8, num_quantizers=3"), std::string::npos);
  EXPECT_NE(text.str().find("torchvq::GroupedResidualVQ(dim=8, groups=2"), std::string::npos);
}

TEST(ResidualVQStateTest, SharedOptimizersStepInInferenceModeAsWithoutGradients) {
  auto options =
      ResidualVQOptions(8).num_quantizers(2).codebook_size(16).heads(2).shared_codebook(true);
  options.vq().learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(
      [](std::vector<torch::Tensor> parameters) {
        return std::make_shared<torch::optim::SGD>(std::move(parameters), 0.1);
      });
  const auto x = at::randn({2, 20, 8});
  const auto call = ResidualVQForwardOptions().mask(at::rand({2, 20}) < 0.7);
  ResidualVQ one(options);
  const auto two = std::dynamic_pointer_cast<ResidualVQImpl>(one->clone());
  {
    const c10::InferenceMode mode;
    one(x, call);
  }
  const torch::NoGradGuard no_grad;
  two->forward(x, call);
  EXPECT_TRUE(
      at::equal(one->levels[0]->codebook_state->embed, two->levels[0]->codebook_state->embed));
}

}  // namespace
}  // namespace torchvq::residual_vq_state_test
