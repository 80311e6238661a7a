// HierarchicalVQ in C++.
#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/functional/upsampling.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <torchvq/functional/scales.h>
#include <torchvq/modules/hierarchical_vq.h>
#include <torchvq/modules/state_dict.h>

#include "modules/vector_quantize_support.h"

namespace torchvq::hierarchical_vq_test {
namespace {

HierarchicalVQOptions options() {
  return HierarchicalVQOptions(6, 11, {1, 2, 4}).accept_image_fmap(true);
}

torch::Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(7);
  return torch::randn(sizes);
}

/// The forward in plain loops with torch's interpolation, in float64, with the present codes.
std::vector<torch::Tensor> walk(HierarchicalVQ& module, const torch::Tensor& x) {
  namespace N = torch::nn::functional;
  const auto& conv = *module->phis[0]->conv;
  auto residual = x.to(at::kDouble), output = torch::zeros_like(residual);
  std::vector<torch::Tensor> found;
  for (int64_t n = 0; n < module->num_levels(); ++n) {
    const auto size = module->resolved().shapes[n][0];
    const auto codes = module->get_vq(n).codebook().to(at::kDouble);
    const auto height = x.size(2), width = x.size(3);
    auto grid = torch::empty({x.size(0), size, size, x.size(1)}, at::kDouble);
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = 0; j < size; ++j) {
        const auto cell = residual.slice(2, i * height / size, ((i + 1) * height + size - 1) / size)
                              .slice(3, j * width / size, ((j + 1) * width + size - 1) / size);
        grid.select(1, i).select(1, j).copy_(cell.mean({2, 3}));
      }
    }
    const auto indices = at::cdist(grid.flatten(0, 2), codes).argmin(-1);
    found.push_back(indices.view({x.size(0), size, size}));
    const auto map = N::interpolate(codes.index({found.back()}).permute({0, 3, 1, 2}),
                                    N::InterpolateFuncOptions()
                                        .size(std::vector<int64_t>{height, width})
                                        .mode(torch::kBilinear)
                                        .align_corners(false));
    const auto smooth =
        at::conv2d(map, conv.weight.to(at::kDouble), conv.bias.to(at::kDouble), 1, 1);
    const auto taken = 0.5 * map + 0.5 * smooth;
    output = output + taken;
    residual = residual - taken;
  }
  found.push_back(output);
  return found;
}

TEST(HierarchicalVQTest, IsTheWalkOfThePaper) {
  HierarchicalVQ module(options().kmeans_init(false));
  module->eval();
  module->vqs[0]->set_codebook(normal({11, 6}));
  for (const auto side : {4, 7, 3}) {
    const auto x = normal({2, 6, side, side + 1});
    const auto found = module(x);
    const auto expected = walk(module, x);
    for (size_t n = 0; n < 3; ++n) EXPECT_TRUE(at::equal(found.indices[n], expected[n]));
    EXPECT_TRUE(at::allclose(found.quantized.to(at::kDouble), expected[3], 1e-5, 1e-5));
    const auto decoded =
        module->get_output_from_indices(found.indices, std::vector<int64_t>{side, side + 1});
    EXPECT_TRUE(at::equal(decoded, found.quantized));
    EXPECT_EQ(found.loss.item<float>(), 0);
  }
}

TEST(HierarchicalVQTest, LearnsOncePerForward) {
  HierarchicalVQ module(options().kmeans_init(false).threshold_ema_dead_code(0));
  module->vqs[0]->set_codebook(normal({11, 6}));
  auto expected = torch::zeros({11});
  const auto found = module(normal({2, 6, 4, 4}));
  for (const auto& indices : found.indices) {
    expected += at::bincount(indices.flatten(), {}, 11);
  }
  // The averages decay once per scale.
  const double kept = 0.99 * 0.99 * 0.99;
  const auto sizes = kept * torch::ones({11}) + (1 - kept) * expected;
  EXPECT_TRUE(at::allclose(module->vqs[0]->codebook_state->cluster_size[0], sizes, 1e-5, 1e-6));
  const auto stats = module->stats();
  ASSERT_EQ(stats.size(), 3);
  EXPECT_EQ(stats[0].tokens, 2);
  EXPECT_EQ(stats[2].tokens, 32);
  EXPECT_EQ(module->vqs[0]->stats().tokens, 42);
}

TEST(HierarchicalVQTest, KmeansSeesAllScales) {
  HierarchicalVQ module(options().threshold_ema_dead_code(0));
  const auto first = module(normal({2, 6, 4, 4}));
  // k-means on the two tokens of the coarsest scale alone would leave nine equal codes.
  const auto codes = module->vqs[0]->codebook();
  const auto distances = at::cdist(codes, codes) + 1e3 * torch::eye(11);
  EXPECT_GT(distances.min().item<float>(), 1e-3);
  EXPECT_TRUE(module->vqs[0]->codebook_state->initted.item<bool>());
}

TEST(HierarchicalVQTest, DroppedScalesAreAbsent) {
  HierarchicalVQ module(options().nested_dropout(1).shared_codebook(false).share_quant_resi(0));
  auto cutoffs = std::vector<int>(3, 0);
  for (int step = 0; step < 20; ++step) {
    auto x = normal({2, 6, 4, 4}).requires_grad_();
    const auto found = module(x);
    ASSERT_TRUE(found.cutoff.has_value());
    cutoffs.at(*found.cutoff)++;
    for (int64_t n = 0; n < 3; ++n) {
      EXPECT_EQ(found.indices[n].ge(0).all().item<bool>(), n <= *found.cutoff);
    }
    EXPECT_TRUE(at::equal(found.indices[2], at::full_like(found.indices[2], -1)));
    (found.loss + found.quantized.sum()).backward();
    for (const auto& parameter : module->parameters()) EXPECT_TRUE(parameter.grad().defined());
  }
  EXPECT_GT(cutoffs[0], 0);
  EXPECT_GT(cutoffs[1], 0);
  module->eval();
  EXPECT_FALSE(module(normal({2, 6, 4, 4})).cutoff.has_value());
}

TEST(HierarchicalVQTest, TheLossOfDroppedScalesHasTheDtypeOfTheTokens) {
  HierarchicalVQ module(options().nested_dropout(1).kmeans_init(false));
  module->to(torch::kDouble);
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(module(normal({2, 6, 4, 4})).loss.scalar_type(), torch::kFloat);
  }
}

TEST(HierarchicalVQTest, AFrozenForwardThatDrawsNothingLeavesTheGenerators) {
  HierarchicalVQ module(options().kmeans_init(false));
  const auto rng = module->vqs[0]->codebook_state->rng.clone();
  module->forward(normal({2, 6, 4, 4}), HierarchicalVQForwardOptions().freeze_codebook(true));
  EXPECT_TRUE(at::equal(module->vqs[0]->codebook_state->rng, rng));
  module(normal({2, 6, 4, 4}));
  EXPECT_FALSE(at::equal(module->vqs[0]->codebook_state->rng, rng));
}

TEST(HierarchicalVQTest, PaddingIsAbsent) {
  HierarchicalVQ module(options().kmeans_init(false));
  module->eval();
  auto x = normal({2, 6, 4, 5});
  auto mask = torch::zeros({2, 4, 5}, torch::kBool);
  mask.slice(1, 0, 3).slice(2, 0, 2).fill_(true);
  const auto real = mask.unsqueeze(1);
  const auto call = HierarchicalVQForwardOptions().mask(mask);
  const auto expected = module(x, call);
  const auto found = module(x.masked_fill(real.logical_not(), std::nan("")), call);
  EXPECT_TRUE(at::equal(found.quantized, expected.quantized));
  EXPECT_TRUE(found.quantized.masked_select(real.logical_not()).eq(0).all().item<bool>());
  EXPECT_TRUE(found.indices[2].select(2, 3).eq(-1).all().item<bool>());
  const auto decoded =
      module->get_output_from_indices(found.indices, std::vector<int64_t>{4, 5}, mask);
  EXPECT_TRUE(at::equal(decoded, found.quantized));
}

TEST(HierarchicalVQTest, TargetsAreScored) {
  HierarchicalVQ module(options().kmeans_init(false));
  module->eval();
  module->vqs[0]->set_codebook(normal({11, 6}));
  auto x = normal({2, 6, 4, 4});
  const auto found = module(x);
  const auto near = module(x, HierarchicalVQForwardOptions().indices(found.indices)).loss;
  auto others = found.indices;
  for (auto& scale : others) scale = (scale + 1) % 11;
  const auto far = module(x, HierarchicalVQForwardOptions().indices(others)).loss;
  EXPECT_LT(near.item<float>(), far.item<float>());
}

TEST(HierarchicalVQTest, CopiesAndFilesKeepTheState) {
  for (const bool shared : {true, false}) {
    HierarchicalVQ module(options().shared_codebook(shared).share_quant_resi(2));
    module(normal({2, 6, 4, 4}));
    auto copy = std::dynamic_pointer_cast<HierarchicalVQImpl>(module->clone());
    std::stringstream file;
    torch::serialize::OutputArchive written;
    module->save(written);
    written.save_to(file);
    HierarchicalVQ loaded(options().shared_codebook(shared).share_quant_resi(2));
    torch::serialize::InputArchive read;
    read.load_from(file);
    loaded->load(read);
    HierarchicalVQ taken(options().shared_codebook(shared).share_quant_resi(2));
    load_state_dict(*taken, state_dict(*module));
    const auto expected = module(normal({2, 6, 5, 4}));
    EXPECT_TRUE(at::equal(copy->forward(normal({2, 6, 5, 4})).quantized, expected.quantized));
    EXPECT_TRUE(at::equal(loaded(normal({2, 6, 5, 4})).quantized, expected.quantized));
    EXPECT_TRUE(at::equal(taken(normal({2, 6, 5, 4})).quantized, expected.quantized));
  }
}

TEST(HierarchicalVQTest, RefusesWhatDoesNotFit) {
  HierarchicalVQ module(options());
  EXPECT_THROW(module(normal({2, 6, 4})), c10::ValueError);
  EXPECT_THROW(module(normal({2, 5, 4, 4})), c10::ValueError);
  EXPECT_THROW(module(normal({2, 6, 4, 4}),
                      HierarchicalVQForwardOptions().mask(torch::ones({2, 4}, torch::kBool))),
               c10::ValueError);
  EXPECT_THROW(module(normal({2, 6, 4, 4}),
                      HierarchicalVQForwardOptions().indices(std::vector<torch::Tensor>{})),
               c10::ValueError);
  EXPECT_THROW(module->get_output_from_indices({}), c10::ValueError);
  EXPECT_THROW(HierarchicalVQ(HierarchicalVQOptions(6, 11, {2, 1})), c10::ValueError);
  EXPECT_THROW(HierarchicalVQ(HierarchicalVQOptions(6, 11, {{1, 2}, {2, 4}})), c10::ValueError);
  EXPECT_THROW(HierarchicalVQ(HierarchicalVQOptions(6, {11, 12}, {1, 2})), c10::ValueError);
  EXPECT_THROW(HierarchicalVQ(options().nested_dropout(2)), c10::ValueError);
  EXPECT_THROW(HierarchicalVQ(options().accept_3d_fmap(true)), c10::ValueError);
}

TEST(HierarchicalVQTest, ScalesMayDifferAlongAxes) {
  HierarchicalVQ module(HierarchicalVQOptions(6, 11, {{1, 2}, {2, 4}}).accept_image_fmap(true));
  const auto found = module(normal({2, 6, 4, 5}));
  EXPECT_EQ(found.indices[1].sizes(), (at::IntArrayRef{2, 2, 4}));
}

TEST(ScalesTest, ConvolutionsAreSpreadEvenly) {
  using List = std::vector<int64_t>;
  EXPECT_EQ(functional::convolution_of_scales(5, 2), (List{0, 0, 0, 1, 1}));
  EXPECT_EQ(functional::convolution_of_scales(5, 4), (List{0, 1, 2, 2, 3}));
  EXPECT_EQ(functional::convolution_of_scales(3, 0), (List{0, 1, 2}));
  EXPECT_EQ(functional::convolution_of_scales(3, 9), (List{0, 1, 2}));
  EXPECT_EQ(functional::convolution_of_scales(1, 4), (List{0}));
}

TEST(HierarchicalVQTest, EachScaleLearnsByItsOwnOptions) {
  using Change = std::function<void(HierarchicalVQImpl&, int64_t)>;
  const std::vector<Change> changes{
      [](auto& module, int64_t scale) { module.get_vq(scale).eval(); },
      [](auto& module, int64_t scale) { module.get_vq(scale).options.freeze_codebook(true); }};
  for (const auto& change : changes) {
    for (int64_t scale = 0; scale < 3; ++scale) {
      HierarchicalVQ module(options().shared_codebook(false).kmeans_init(false));
      change(*module, scale);
      std::vector<torch::Tensor> before;
      for (int64_t n = 0; n < 3; ++n) before.push_back(module->get_vq(n).codebook().clone());
      module(normal({2, 6, 8, 8}));
      for (int64_t n = 0; n < 3; ++n)
        EXPECT_EQ(at::equal(before[n], module->get_vq(n).codebook()), n == scale) << n;
    }
  }
}

TEST(HierarchicalVQTest, ABridgeThatFailsInALaterScaleLeavesTheState) {
  for (const bool shared : {false, true}) {
    for (const bool in_turn : {false, true}) {  // the first scale has learnt when the second fails
      HierarchicalVQ module(
          options().shared_codebook(shared).vqp_compat(in_turn).kmeans_init(!in_turn));
      for (auto& vq : module->vqs) {
        vq->codebook_state->options.vq_bridge(torch::nn::AnyModule(testing::FragileBridge()));
      }
      testing::expect_undone(module, normal({2, 6, 8, 8}), 1);
    }
  }
}

TEST(HierarchicalVQTest, FreezingIsDecidedAtEachCall) {
  HierarchicalVQ module(options().freeze_codebook(true).kmeans_init(false));
  const auto moves = [&](const HierarchicalVQForwardOptions& call) {
    const auto before = module->get_vq(0).codebook().clone();
    module(normal({2, 6, 8, 8}), call);
    return !at::equal(before, module->get_vq(0).codebook());
  };
  EXPECT_FALSE(moves({}));
  EXPECT_TRUE(moves(HierarchicalVQForwardOptions().freeze_codebook(false)));
  module->options.freeze_codebook(false);
  EXPECT_TRUE(moves({}));
}

}  // namespace
}  // namespace torchvq::hierarchical_vq_test
