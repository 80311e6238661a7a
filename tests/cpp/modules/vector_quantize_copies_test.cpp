// Copies of the VectorQuantize module: state, options and parts of their own.
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "expect_throw.h"
#include "modules/vector_quantize_resumed.h"

namespace torchvq::vector_quantize_copies_test {
namespace {

using namespace torchvq::testing;
using resumed::Bridge, resumed::configurations, resumed::expect_continues_alike, resumed::kDim;
using resumed::options, resumed::train;

TEST(VectorQuantizeCopiesTest, CloneContinuesTheRunOnItsOwn) {
  for (const auto& [name, given] : configurations()) {
    SCOPED_TRACE(name);
    auto original = make(given);
    train(original, 0, 3);
    const auto before = state_of(original);
    VectorQuantize copy(std::dynamic_pointer_cast<VectorQuantizeImpl>(original->clone()));
    train(copy, 3, 6);
    expect_same_state(state_of(original), before);
    VectorQuantize second(std::dynamic_pointer_cast<VectorQuantizeImpl>(original->clone()));
    expect_continues_alike(second, original);
    expect_same_state(state_of(copy), state_of(original));
  }
}

VectorQuantize clone_of(const VectorQuantize& module) {
  return VectorQuantize(std::dynamic_pointer_cast<VectorQuantizeImpl>(module->clone()));
}

TEST(VectorQuantizeCopiesTest, CopiesHaveTheOptionsOfNow) {
  auto module = make(options());
  module->options.commitment_weight(7);
  module->codebook_state->options.decay(0.1).threshold_ema_dead_code(3);
  auto copy = clone_of(module);
  const auto x = normal({2, 30, kDim});
  EXPECT_TRUE(at::equal(copy(x).loss, module(x).loss));
  expect_continues_alike(copy, module);
  auto bridged = make(configurations().at("bridge"));
  bridged->codebook_state->options.vq_bridge(torch::nn::AnyModule());
  auto plain = clone_of(bridged);
  EXPECT_TRUE(plain->codebook_state->options.vq_bridge().is_empty());
  bridged->codebook_state->options.vq_bridge(torch::nn::AnyModule(Bridge()));
  auto replaced = clone_of(bridged);
  EXPECT_TRUE(at::equal(replaced->codebook(), bridged->codebook()));
  EXPECT_NE(replaced->codebook_state->options.vq_bridge().ptr(),
            bridged->codebook_state->options.vq_bridge().ptr());
}

TEST(VectorQuantizeCopiesTest, CopiesHaveTheTensorsOfConstruction) {
  for (const double weight : {0.0, 1.0}) {
    auto module = make(options().orthogonal_reg_weight(weight));
    module->options.orthogonal_reg_weight(1 - weight);
    auto copy = clone_of(module);
    EXPECT_EQ(copy->codebook_state->parameters().size(), weight > 0 ? 1u : 0u);
    expect_continues_alike(copy, module);
  }
}

TEST(VectorQuantizeCopiesTest, ModulesWithOtherPartsAreNotCopied) {
  auto module = make(options());
  module->register_module("probe", torch::nn::Linear(2, 2));
  expect_throw_with<c10::ValueError>([&] { module->clone(); },
                                     "clone: expected the module to have the submodules of its "
                                     "construction, but got additional ones: probe, and missing "
                                     "ones: none");
  auto buffered = make(options());
  buffered->register_buffer("seen", at::zeros({1}));
  expect_throw_with<c10::ValueError>([&] { buffered->clone(); }, "additional ones: seen");
}

TEST(VectorQuantizeCopiesTest, CopiedOptimizersHaveTheRateOfNow) {
  std::vector<std::shared_ptr<torch::optim::Optimizer>> made;
  const auto given = options().learnable_codebook(true).ema_update(false);
  auto module =
      make(Options(given).in_place_codebook_optimizer([&](std::vector<torch::Tensor> parameters) {
        made.push_back(std::make_shared<torch::optim::Adam>(std::move(parameters),
                                                            torch::optim::AdamOptions(0.05)));
        return made.back();
      }));
  train(module, 0, 2);
  made[0]->param_groups()[0].options().set_lr(0.5);
  auto copy = clone_of(module);
  expect_continues_alike(copy, module);
  made[0]->param_groups()[0].options().set_lr(0.25);
  EXPECT_EQ(made[1]->param_groups()[0].options().get_lr(), 0.5);
}

TEST(VectorQuantizeCopiesTest, CloneInsideAModelUsesItsOwnTensors) {
  struct ModelImpl : torch::nn::Cloneable<ModelImpl> {
    explicit ModelImpl(Options given) : given(std::move(given)) { reset(); }
    void reset() override { quantizer = register_module("quantizer", make(given)); }
    Options given;
    VectorQuantize quantizer{nullptr};
  };
  for (const auto& name : {"norm", "adam", "projected"}) {
    SCOPED_TRACE(name);
    auto original = std::make_shared<ModelImpl>(configurations().at(name));
    train(original->quantizer, 0, 3);
    const auto copy = std::dynamic_pointer_cast<ModelImpl>(original->clone());
    expect_continues_alike(copy->quantizer, original->quantizer);
    EXPECT_TRUE(state_dict(*copy).contains("quantizer._codebook.embed"));
  }
}

TEST(VectorQuantizeCopiesTest, CopiesCountTheirOwnReplacedCodes) {
  VectorQuantize original(Options(kDim).codebook_size(8).threshold_ema_dead_code(2));
  original->forward(normal({2, 8, kDim}));
  VectorQuantize copy(std::dynamic_pointer_cast<VectorQuantizeImpl>(original->clone()));
  const auto before = copy->stats().replaced;
  original->codebook_state->cluster_size.zero_();
  original->expire_codes_(normal({1, 50, kDim}));
  EXPECT_GT(original->stats().replaced, before);
  EXPECT_EQ(copy->stats().replaced, before);
}

TEST(VectorQuantizeCopiesTest, CloneKeepsModeFrozenParametersAndStatisticsInWaiting) {
  auto module = make(options().orthogonal_reg_weight(1));
  module->codebook_state->embed.set_requires_grad(false);
  module(normal({2, 30, kDim}), CallOptions().accum_ema_update(true));
  VectorQuantize copy(std::dynamic_pointer_cast<VectorQuantizeImpl>(module->clone()));
  EXPECT_FALSE(copy->codebook_state->embed.requires_grad());
  expect_continues_alike(copy, module);
  module->eval();
  EXPECT_FALSE(module->clone()->is_training());
}

}  // namespace
}  // namespace torchvq::vector_quantize_copies_test
