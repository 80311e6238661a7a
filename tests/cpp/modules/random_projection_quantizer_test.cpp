// RandomProjectionQuantizer in C++.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <torchvq/modules/random_projection_quantizer.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::random_projection_quantizer_test {
namespace {

RandomProjectionQuantizerOptions options() {
  return RandomProjectionQuantizerOptions(6, 11, 4).num_codebooks(3);
}

torch::Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(7);
  return torch::randn(sizes);
}

/// The cosines (*, C, K) in float64.
torch::Tensor cosines(RandomProjectionQuantizer& module, const torch::Tensor& x, bool norm) {
  auto wide = x.to(at::kDouble);
  if (norm) wide = at::layer_norm(wide, {wide.size(-1)});
  auto projected = at::einsum("...d,cde->...ce", {wide, module->rand_projs.to(at::kDouble)});
  if (module->vq->project_in) {
    const auto weight = module->vq->project_in->weight.to(at::kDouble);
    projected = projected.flatten(-2).matmul(weight.t()).unflatten(-1, {projected.size(-2), -1});
  }
  const auto codes = module->vq->codebook().to(at::kDouble);
  const auto unit = [](const torch::Tensor& y) { return y / y.norm(2, -1, /*keepdim=*/true); };
  return at::einsum("...ce,cke->...ck", {unit(projected), unit(codes)});
}

TEST(RandomProjectionQuantizerTest, TakesTheNearestDirection) {
  for (const bool norm : {true, false}) {
    RandomProjectionQuantizer module(options().norm(norm));
    const auto x = normal({2, 5, 6});
    const auto indices = module(x);
    EXPECT_EQ(indices.sizes(), (std::vector<int64_t>{2, 5, 3}));
    EXPECT_TRUE(at::equal(indices, cosines(module, x, norm).argmax(-1)));
  }
}

TEST(RandomProjectionQuantizerTest, CrossEntropyIsThatOfTheCosines) {
  RandomProjectionQuantizer module(options());
  auto x = normal({2, 5, 6}).requires_grad_();
  const auto targets = torch::randint(11, {2, 5, 3});
  const auto loss = module(x, RandomProjectionQuantizerForwardOptions().indices(targets));
  const auto logits = cosines(module, x, true);
  const auto expected = at::cross_entropy_loss(logits.flatten(0, -2), targets.flatten());
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
  const auto gradient = torch::autograd::grad({loss}, {x})[0];
  const auto right = torch::autograd::grad({expected}, {x})[0];
  EXPECT_TRUE(at::allclose(gradient, right, 1e-4, 1e-6));
}

TEST(RandomProjectionQuantizerTest, NothingMovesInTraining) {
  RandomProjectionQuantizer module(options());
  for (auto& parameter : module->parameters()) EXPECT_FALSE(parameter.requires_grad());
  std::map<std::string, torch::Tensor> before;
  for (const auto& [name, value] : state_dict(*module)) before[name] = value.clone();
  for (int step = 0; step < 3; ++step) module(normal({2, 5, 6}));
  for (const auto& [name, value] : state_dict(*module)) {
    EXPECT_TRUE(at::equal(value, before.at(name))) << name;
  }
}

TEST(RandomProjectionQuantizerTest, MaskedAndNonFiniteTokensStayAlone) {
  RandomProjectionQuantizer module(options());
  auto x = normal({2, 3, 6});
  const auto right = module(x);
  const auto mask = torch::tensor({{true, false, true}, {false, true, true}});
  x.index_put_({mask.logical_not()}, std::nan(""));
  const auto found = module(x, RandomProjectionQuantizerForwardOptions().mask(mask));
  EXPECT_TRUE(at::equal(found.index({mask}), right.index({mask})));
  EXPECT_TRUE(found.index({mask.logical_not()}).eq(-1).all().item<bool>());
  const auto bare = module(x);
  EXPECT_TRUE(at::equal(bare.index({mask}), right.index({mask})));
  EXPECT_TRUE(bare.index({mask.logical_not()}).eq(0).all().item<bool>());
}

TEST(RandomProjectionQuantizerTest, LayoutsAndPrecision) {
  RandomProjectionQuantizer module(options().num_codebooks(1).channel_last(false));
  const auto x = normal({2, 6, 3, 4}).to(at::kBFloat16);
  const auto indices = module(x);
  EXPECT_EQ(indices.sizes(), (std::vector<int64_t>{2, 3, 4}));
  module->to(at::kBFloat16);
  EXPECT_EQ(module->rand_projs.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(module(x), indices));
  EXPECT_TRUE(at::equal(module(x.to(at::kDouble)), indices));
}

TEST(RandomProjectionQuantizerTest, StateHasTheNamesOfPython) {
  RandomProjectionQuantizer module(options());
  const auto state = state_dict(*module);
  for (const char* name : {"rand_projs", "vq._codebook.embed", "vq._codebook.initted"}) {
    EXPECT_TRUE(state.contains(name)) << name;
  }
  auto copy = std::dynamic_pointer_cast<RandomProjectionQuantizerImpl>(module->clone());
  const auto x = normal({1, 9, 6});
  EXPECT_TRUE(at::equal(module(x), copy->forward(x)));
}

// The expected ratio is that of the rule of Xavier for (C, dim, codebook_dim) as one tensor, whose
// fans are dim * codebook_dim and C * codebook_dim, to that for each projection.
TEST(RandomProjectionQuantizerTest, TheSwitchDrawsSmallerProjections) {
  torch::manual_seed(3);
  const RandomProjectionQuantizer plain(options().vqp_compat(false));
  torch::manual_seed(3);
  const RandomProjectionQuantizer compatible(options().vqp_compat(true));
  const auto ratio = std::sqrt((2.0 / (4 * (6 + 3))) / (2.0 / (6 + 4)));
  EXPECT_TRUE(at::allclose(compatible->rand_projs, plain->rand_projs * ratio, 1e-6, 0));
}

TEST(RandomProjectionQuantizerTest, OptionsAndInputAreChecked) {
  using Options = RandomProjectionQuantizerOptions;
  EXPECT_THROW(RandomProjectionQuantizer(Options(0, 4, 4)), c10::ValueError);
  EXPECT_THROW(RandomProjectionQuantizer(Options(4, 0, 4)), c10::ValueError);
  EXPECT_THROW(RandomProjectionQuantizer(Options(4, 4, 0)), c10::ValueError);
  EXPECT_THROW(RandomProjectionQuantizer(Options(4, 4, 4).num_codebooks(0)), c10::ValueError);
  EXPECT_THROW(
      RandomProjectionQuantizer(Options(4, 4, 4).accept_image_fmap(true).accept_3d_fmap(true)),
      c10::ValueError);
  RandomProjectionQuantizer module(options());
  EXPECT_THROW(module(normal({2, 5, 7})), c10::ValueError);
  EXPECT_THROW(module(torch::zeros({2, 5, 6}, at::kLong)), c10::TypeError);
  const auto outside = torch::full({2, 5, 3}, 11);
  EXPECT_THROW(
      module(normal({2, 5, 6}), RandomProjectionQuantizerForwardOptions().indices(outside)),
      c10::IndexError);
  const auto transposed = torch::zeros({5, 2, 3}, at::kLong);
  EXPECT_THROW(
      module(normal({2, 5, 6}), RandomProjectionQuantizerForwardOptions().indices(transposed)),
      c10::ValueError);
}

}  // namespace
}  // namespace torchvq::random_projection_quantizer_test
