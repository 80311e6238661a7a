// SimVQ in C++.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <torchvq/modules/residual_sim_vq.h>
#include <torchvq/modules/sim_vq.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::sim_vq_test {
namespace {

SimVQOptions options() { return SimVQOptions(6, 11).frozen_codebook_dim(4); }

torch::Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(7);
  return torch::randn(sizes);
}

struct PerceptronImpl : torch::nn::Cloneable<PerceptronImpl> {
  PerceptronImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 9));
    last = register_module("last", torch::nn::Linear(9, 6));
  }
  torch::Tensor forward(const torch::Tensor& codes) { return last(first(codes).tanh()); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Perceptron);

/// Nearest transformed codes by float64 distances.
torch::Tensor nearest(SimVQ& module, const torch::Tensor& x) {
  return at::cdist(x.to(at::kDouble).flatten(0, 1), module->codebook().to(at::kDouble))
      .argmin(-1)
      .view({x.size(0), x.size(1)});
}

TEST(SimVQTest, TakesTheNearestTransformedCode) {
  for (const bool network : {false, true}) {
    auto own = options();
    if (network) own.codebook_transform(torch::nn::AnyModule(Perceptron()));
    SimVQ module(own);
    const auto x = normal({2, 5, 6});
    const auto output = module(x);
    EXPECT_TRUE(at::equal(output.indices, nearest(module, x)));
    EXPECT_TRUE(at::equal(output.quantized, module->indices_to_codes(output.indices)));
    EXPECT_TRUE(at::equal(output.quantized, module->codebook().index({output.indices})));
  }
}

/// A linear layer with a forward of its own.
struct ScaledImpl : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
  // NOLINTNEXTLINE(bugprone-derived-method-shadowing-base-method)
  torch::Tensor forward(const torch::Tensor& codes) { return LinearImpl::forward(codes) * 3; }
};

TEST(SimVQTest, ALayerDerivedFromLinearIsAskedForItsForward) {
  const auto layer = std::make_shared<ScaledImpl>(4, 6);
  SimVQ module(options().codebook_transform(torch::nn::AnyModule(layer)));
  const auto codes = layer->forward(module->frozen_codebook);
  EXPECT_TRUE(at::equal(module->codebook(), codes));
  const auto output = module(normal({2, 5, 6}));
  EXPECT_TRUE(at::equal(output.quantized, codes.index({output.indices})));
}

TEST(SimVQTest, LossPullsBothSides) {
  SimVQ module(options().commitment_weight(0.7).input_to_quantize_commit_loss_weight(0.3));
  auto x = normal({2, 5, 6}).requires_grad_();
  const auto output = module(x);
  const auto codes = module->codebook().index({output.indices});
  const auto expected =
      0.7 * (at::mse_loss(x.detach(), codes) + 0.3 * at::mse_loss(x, codes.detach()));
  EXPECT_NEAR(output.loss.item<double>(), expected.item<double>(), 1e-6);
  const auto inputs = std::vector<torch::Tensor>{x, module->parameters()[0]};
  const auto gradients = torch::autograd::grad({output.loss}, inputs);
  const auto right = torch::autograd::grad({expected}, inputs);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(gradients[i], right[i], 1e-4, 1e-6));
}

TEST(SimVQTest, GradientIsThatOfTheEstimator) {
  SimVQ module(options().rotation_trick(false));
  auto x = normal({2, 5, 6}).requires_grad_();
  module(x).quantized.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
  EXPECT_FALSE(module->parameters()[0].grad().defined());
  module->eval();
  const auto output = module(x);
  EXPECT_FALSE(output.loss.requires_grad());
  output.quantized.sum().backward();
  EXPECT_TRUE(module->parameters()[0].grad().defined());
}

TEST(SimVQTest, MaskedIsAbsentAndNonFiniteAlone) {
  SimVQ module(options());
  auto x = normal({2, 3, 6});
  const auto mask = torch::tensor({{true, false, true}, {false, true, true}});
  x.index_put_({mask.logical_not()}, std::nan(""));
  const auto found = module(x, mask);
  const auto right = module(x.index({mask}).unsqueeze(0));
  EXPECT_TRUE(at::allclose(found.loss, right.loss));
  EXPECT_TRUE(at::equal(found.indices.index({mask}), right.indices[0]));
  EXPECT_TRUE(found.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
  EXPECT_TRUE(found.quantized.index({mask.logical_not()}).eq(0).all().item<bool>());
  const auto bare = module(x);
  EXPECT_TRUE(bare.quantized.index({mask.logical_not()}).isnan().all().item<bool>());
  EXPECT_TRUE(bare.indices.index({mask.logical_not()}).eq(0).all().item<bool>());
  EXPECT_EQ(module(x.narrow(0, 0, 0)).loss.item<double>(), 0);
}

TEST(SimVQTest, LayoutsAndPrecision) {
  SimVQ module(options().channel_first(true));
  const auto x = normal({2, 6, 3, 4}).to(at::kBFloat16);
  const auto output = module(x);
  EXPECT_EQ(output.quantized.sizes(), x.sizes());
  EXPECT_EQ(output.quantized.scalar_type(), at::kBFloat16);
  EXPECT_EQ(output.indices.sizes(), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_TRUE(
      at::equal(module->indices_to_codes(output.indices).to(at::kBFloat16), output.quantized));
  module->to(at::kBFloat16);
  EXPECT_EQ(module->frozen_codebook.scalar_type(), at::kFloat);
  const auto narrow = module(x);
  EXPECT_TRUE(
      at::equal(module->indices_to_codes(narrow.indices).to(at::kBFloat16), narrow.quantized));
}

TEST(SimVQTest, StateHasTheNamesOfPython) {
  auto own = options().codebook_transform(torch::nn::AnyModule(Perceptron()));
  SimVQ module(own);
  std::vector<std::string> names;
  for (const auto& [name, value] : state_dict(*module)) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"code_transform.first.bias", "code_transform.first.weight",
                                      "code_transform.last.bias", "code_transform.last.weight",
                                      "frozen_codebook"}));
  auto copy = std::dynamic_pointer_cast<SimVQImpl>(module->clone());
  const auto x = normal({1, 9, 6});
  EXPECT_TRUE(at::equal(module(x).loss, copy->forward(x).loss));
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) parameter.add_(1);
  }
  EXPECT_FALSE(at::equal(module(x).loss, copy->forward(x).loss));
}

TEST(SimVQTest, FrozenCodesAreWhatInitFnMakesOfThem) {
  SimVQ module(options().init_fn([](const torch::Tensor& codes) { return at::zeros_like(codes); }));
  EXPECT_TRUE(module->frozen_codebook.eq(0).all().item<bool>());
  EXPECT_EQ(module->frozen_codebook.sizes(), (std::vector<int64_t>{11, 4}));
}

TEST(SimVQTest, WhatInitFnReturnsIsCopied) {
  const auto row = normal({1, 6}), before = row.clone();
  ResidualSimVQOptions stack(6, 2, 11);
  stack.sim_vq().init_fn([&](const torch::Tensor& /*codes*/) { return row.expand({11, 6}); });
  ResidualSimVQ module(stack), from(ResidualSimVQOptions(6, 2, 11));
  load_state_dict(*module, state_dict(*from));
  for (size_t level = 0; level < 2; ++level) {
    EXPECT_TRUE(
        at::equal(module->levels[level]->frozen_codebook, from->levels[level]->frozen_codebook));
  }
  EXPECT_TRUE(at::equal(row, before));
}

TEST(SimVQTest, OptionsAndInputAreChecked) {
  EXPECT_THROW(SimVQ(SimVQOptions(0, 4)), c10::ValueError);
  EXPECT_THROW(SimVQ(SimVQOptions(4, 0)), c10::ValueError);
  EXPECT_THROW(SimVQ(options().frozen_codebook_dim(0)), c10::ValueError);
  EXPECT_THROW(SimVQ(options().commitment_weight(-1)), c10::ValueError);
  EXPECT_THROW(SimVQ(options().input_to_quantize_commit_loss_weight(std::nan(""))),
               c10::ValueError);
  EXPECT_THROW(SimVQ(options().init_fn([](const torch::Tensor& codes) { return codes[0]; })),
               c10::ValueError);
  SimVQ wrong(options().codebook_transform(torch::nn::AnyModule(torch::nn::Linear(4, 5))));
  EXPECT_THROW(wrong(normal({2, 5, 6})), c10::ValueError);
  SimVQ module(options());
  EXPECT_THROW(module(normal({2, 5, 7})), c10::ValueError);
  EXPECT_THROW(module(torch::zeros({2, 5, 6}, at::kLong)), c10::TypeError);
  EXPECT_THROW(module->indices_to_codes(torch::full({2}, 11)), c10::IndexError);
}

}  // namespace
}  // namespace torchvq::sim_vq_test
