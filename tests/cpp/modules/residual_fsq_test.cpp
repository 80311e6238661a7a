#include <torchvq/modules/residual_fsq.h>

#include <cmath>
#include <functional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/modules/state_dict.h>

#include "expect_throw.h"

namespace torchvq::residual_fsq_test {
namespace {

using namespace torchvq::testing;
using Call = ResidualFSQForwardOptions;

const std::vector<int64_t> kLevels{8, 5, 4};

torch::Tensor normal(at::IntArrayRef shape, int64_t seed = 0) {
  torch::manual_seed(seed);
  return torch::randn(shape);
}

ResidualFSQOptions options(int64_t quantizers = 3) { return {kLevels, quantizers}; }

int64_t depth_of(const torch::Tensor& indices) {
  return indices.ge(0).sum(-1).max().item<int64_t>();
}

TEST(ResidualFSQTest, EachLevelRoundsWhatIsLeftOnItsScale) {
  ResidualFSQ stack(options());
  stack->eval();
  const auto x = normal({2, 300, 3});
  const auto output = stack(x, Call().return_all_codes(true));
  const auto levels = torch::tensor({8.0, 5.0, 4.0}, at::kDouble);
  const auto limit = 1 + 1 / (levels - 1);
  auto left = (x.to(at::kDouble) / limit).tanh() * limit;
  for (int64_t n = 0; n < 3; ++n) {
    const auto scale = levels.pow(-n);
    const auto half = (levels - 1) / 2;
    const auto bounded = (left / scale).clamp(-1, 1);
    const auto codes = (((bounded + 1) * half + 0.5).floor() / half - 1) * scale;
    const auto same = at::isclose(output.all_codes[n].to(at::kDouble), codes, 1e-5, 1e-6);
    EXPECT_GT(same.to(at::kDouble).mean().item<double>(), 0.999) << n;
    left = left - output.all_codes[n].to(at::kDouble);
    EXPECT_TRUE((left.abs() <= scale / (levels - 1) + 1e-6).all().item<bool>()) << n;
  }
  EXPECT_TRUE(at::allclose(output.all_codes.sum(0), output.quantized));
}

TEST(ResidualFSQTest, LevelsBelowTheSmallestNumberAddNothing) {
  ResidualFSQ deep(options(60));
  const auto x = normal({2, 50, 3});
  const auto output = deep(x);
  const auto limit = 1 + 1 / (torch::tensor({8.0F, 5.0F, 4.0F}) - 1);
  EXPECT_TRUE(at::allclose(output.quantized, (x / limit).tanh() * limit, 0, 1e-6));
  EXPECT_TRUE(at::allclose(deep->get_output_from_indices(output.indices), output.quantized));
}

TEST(ResidualFSQTest, TheGainIsThatOfTheFunctionForAnyNumberOfLevels) {
  for (const int64_t quantizers : {1, 2, 8}) {
    ResidualFSQ stack(options(quantizers));
    const auto x = (normal({2, 50, 3}) * 0.3).requires_grad_();
    stack(x).quantized.sum().backward();
    const auto limit = 1 + 1 / (torch::tensor({8.0F, 5.0F, 4.0F}) - 1);
    EXPECT_TRUE(at::allclose(x.grad(), 1 - (x.detach() / limit).tanh().square(), 1e-4, 1e-5));
    ResidualFSQ compatible(options(quantizers).vqp_compat(true));
    const auto twin = x.detach().clone().requires_grad_();
    compatible(twin).quantized.sum().backward();
    EXPECT_GT(twin.grad().sum().item<double>(), x.grad().sum().item<double>() * quantizers * 0.7);
  }
}

/// The levels of a stack called by hand, each on what those before leave, on its scale: output and
/// indices.
std::pair<torch::Tensor, torch::Tensor> chained(ResidualFSQ& stack, const torch::Tensor& x) {
  const auto levels = torch::tensor({8.0F, 5.0F, 4.0F});
  const auto limit = 1 + 1 / (levels - 1);
  const auto inputs = (x / limit).tanh() * limit;
  auto left = inputs;
  std::vector<torch::Tensor> indices;
  for (size_t n = 0; n < stack->levels.size(); ++n) {
    const auto scale = levels.pow(-static_cast<int64_t>(n));
    const auto found = stack->levels[n](left / scale);
    left = left - found.quantized * scale;
    indices.push_back(found.indices);
  }
  return {inputs - left, at::stack(indices, -1)};
}

TEST(ResidualFSQTest, EachLevelHasItsOwnBound) {
  const std::vector<std::function<void(FSQOptions&)>> changes{
      [](auto& own) { own.bound_hard_clamp(false); },
      [](auto& own) { own.preserve_symmetry(false); }};
  for (size_t change = 0; change < changes.size(); ++change) {
    for (const std::set<size_t>& changed : {std::set<size_t>{0}, {1}, {0, 1, 2}}) {
      SCOPED_TRACE(::testing::Message() << change << ", levels from " << *changed.begin());
      ResidualFSQ stack(options());
      for (const auto level : changed) changes[change](stack->levels[level]->options);
      const auto x = normal({2, 50, 3});
      const auto output = stack(x);
      const auto [quantized, indices] = chained(stack, x);
      EXPECT_TRUE(at::equal(output.indices, indices));
      EXPECT_TRUE(at::allclose(output.quantized, quantized, 1e-5, 1e-6));
      EXPECT_TRUE(at::allclose(stack->get_output_from_indices(output.indices), output.quantized,
                               1e-5, 1e-6));
    }
  }
}

TEST(ResidualFSQTest, EveryLayoutDecodesItsIndices) {
  const std::vector<std::vector<int64_t>> shapes{{2, 7, 6}, {2, 3, 5, 6}, {9, 6}};
  for (const bool first : {false, true}) {
    for (const auto& shape : shapes) {
      ResidualFSQ stack(options().dim(6).is_channel_first(first));
      auto x = normal(shape);
      if (first && x.dim() > 2) x = x.movedim(-1, 1);
      const auto output = stack(x);
      EXPECT_EQ(output.quantized.sizes(), x.sizes());
      EXPECT_EQ(output.indices.size(-1), 3);
      EXPECT_TRUE(at::allclose(stack->get_output_from_indices(output.indices), output.quantized,
                               1e-5, 1e-6));
      const auto codes = stack(x, Call().return_all_codes(true)).all_codes;
      EXPECT_TRUE(at::equal(stack->get_codes_from_indices(output.indices), codes));
    }
  }
}

TEST(ResidualFSQTest, DropoutUsesEveryDepthAndTheStepDecides) {
  ResidualFSQ stack(options(4).quantize_dropout(true));
  torch::manual_seed(99);
  ResidualFSQ other(options(4).quantize_dropout(true));
  ASSERT_NE(stack->rng[0].item<int64_t>(), other->rng[0].item<int64_t>());
  std::set<int64_t> depths;
  for (int step = 0; step < 40; ++step) {
    const auto indices = stack(normal({1, 3, 3})).indices;
    EXPECT_EQ(depth_of(indices), depth_of(other(normal({1, 5, 3})).indices));
    depths.insert(depth_of(indices));
    const auto decoded = stack->get_output_from_indices(indices);
    EXPECT_TRUE(decoded.isfinite().all().item<bool>());
  }
  EXPECT_EQ(depths, (std::set<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(stack->rng[1].item<int64_t>(), 40);
  stack->eval();
  EXPECT_EQ(depth_of(stack(normal({1, 3, 3})).indices), 4);
  EXPECT_EQ(stack->rng[1].item<int64_t>(), 40);
}

TEST(ResidualFSQTest, ASeedDecidesAsInPython) {
  ResidualFSQ stack(options(4).quantize_dropout(true));
  const std::vector<int64_t> expected{4, 2, 1, 2, 2, 3, 1, 3};  // random.Random(s).randrange(4) + 1
  for (int64_t seed = 0; seed < 8; ++seed) {
    const auto output = stack(normal({1, 3, 3}), Call().rand_quantize_dropout_fixed_seed(seed));
    EXPECT_EQ(depth_of(output.indices), expected[static_cast<size_t>(seed)]);
  }
  EXPECT_EQ(stack->rng[1].item<int64_t>(), 0);
}

TEST(ResidualFSQTest, MaskedTokensTakeNoPart) {
  ResidualFSQ stack(options().dim(6));
  auto x = normal({2, 4, 6});
  const auto mask = torch::tensor({1, 0, 1, 1, 0, 0, 1, 0}).view({2, 4}).to(at::kBool);
  x = at::where(mask.unsqueeze(-1), x, std::nan("")).requires_grad_();
  const auto output = stack(x, Call().mask(mask).return_all_codes(true));
  EXPECT_TRUE(output.quantized.isfinite().all().item<bool>());
  EXPECT_EQ(output.indices.lt(0).sum().item<int64_t>(), 4 * 3);
  EXPECT_TRUE(output.all_codes.isfinite().all().item<bool>());
  output.quantized.sum().backward();
  EXPECT_EQ(x.grad().index({mask.logical_not()}).abs().sum().item<double>(), 0);
  const auto decoded = stack->get_output_from_indices(output.indices);
  EXPECT_TRUE(at::allclose(decoded, output.quantized, 1e-5, 1e-6));
}

TEST(ResidualFSQTest, NoiseIsDrawnByTheStackAndResumes) {
  auto noisy = options();
  noisy.fsq().noise_dropout(0.5).orthogonal_rotation(true);
  ResidualFSQ stack(noisy), other(noisy);
  const auto x = normal({2, 9, 3});
  stack(x);
  EXPECT_EQ(stack->rng[1].item<int64_t>(), 1);
  EXPECT_FALSE(stack->levels[0]->rng.defined());
  load_state_dict(*other, state_dict(*stack));
  ResidualFSQ copy(std::dynamic_pointer_cast<ResidualFSQImpl>(stack->clone()));
  const auto expected = stack(x).quantized;
  EXPECT_TRUE(at::equal(other(x).quantized, expected));
  EXPECT_TRUE(at::equal(copy(x).quantized, expected));
}

TEST(ResidualFSQTest, LevelsInEvaluationDrawNoNoise) {
  auto noisy = options();
  noisy.fsq().noise_dropout(0.5);
  ResidualFSQ stack(noisy);
  const auto x = normal({2, 9, 3});
  stack->eval();
  const auto expected = stack(x).quantized;
  stack->train();
  EXPECT_FALSE(at::equal(stack(x).quantized, expected));
  for (auto& level : stack->levels) level->eval();
  EXPECT_TRUE(at::allclose(stack(x).quantized, expected, 1e-6, 1e-7));
}

TEST(ResidualFSQTest, PrecisionOfInputsAndModules) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    ResidualFSQ stack(options().dim(6));
    stack->to(dtype);
    stack->eval();
    const auto output = stack(normal({2, 5, 6}).to(dtype));
    EXPECT_EQ(output.quantized.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(stack->get_output_from_indices(output.indices), output.quantized));
  }
}

TEST(ResidualFSQTest, CopiesDecodeInThePrecisionOfTheModule) {
  GroupedResidualFSQ groups(GroupedResidualFSQOptions(6, options()).groups(2));
  groups->to(at::kDouble);
  GroupedResidualFSQ copy(std::dynamic_pointer_cast<GroupedResidualFSQImpl>(groups->clone()));
  const auto indices = groups(normal({2, 5, 6}).to(at::kDouble)).indices;
  const auto decoded = copy->get_output_from_indices(indices);
  EXPECT_EQ(decoded.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(decoded, groups->get_output_from_indices(indices)));
}

TEST(ResidualFSQTest, GroupsShareTheDepthAndTakeVolumes) {
  GroupedResidualFSQ groups(GroupedResidualFSQOptions(8, options(4).quantize_dropout(true))
                                .groups(2)
                                .accept_image_fmap(true));
  const auto x = normal({2, 8, 2, 3, 5});
  for (int step = 0; step < 5; ++step) {
    const auto output = groups(x, Call().return_all_codes(true));
    EXPECT_EQ(output.indices.sizes(), at::IntArrayRef({2, 2, 2, 3, 5, 4}));
    EXPECT_EQ(output.all_codes.sizes(), at::IntArrayRef({2, 4, 2, 2, 3, 5, 3}));
    EXPECT_EQ(depth_of(output.indices[0]), depth_of(output.indices[1]));
    EXPECT_TRUE(at::allclose(groups->get_output_from_indices(output.indices), output.quantized,
                             1e-5, 1e-6));
    EXPECT_TRUE(at::equal(groups->get_codes_from_indices(output.indices), output.all_codes));
  }
  EXPECT_EQ(groups->codebooks().sizes(), at::IntArrayRef({2, 4, 160, 3}));
}

TEST(ResidualFSQTest, GroupsDropLevelsByTheirOwnMode) {
  for (const size_t evaluating : {0, 1}) {
    GroupedResidualFSQ groups(
        GroupedResidualFSQOptions(8, options(4).quantize_dropout(true)).groups(2));
    groups->rvqs[evaluating]->eval();
    std::set<int64_t> depths;
    for (int step = 0; step < 20; ++step) {
      const auto indices = groups(normal({2, 3, 8})).indices;
      EXPECT_EQ(depth_of(indices[static_cast<int64_t>(evaluating)]), 4);
      depths.insert(depth_of(indices[static_cast<int64_t>(1 - evaluating)]));
    }
    EXPECT_GT(depths.size(), 2U);
  }
}

TEST(ResidualFSQTest, BadOptionsAndInputsAreRefused) {
  expect_throw_with<c10::ValueError>([] { ResidualFSQ(options(0)); }, "num_quantizers");
  expect_throw_with<c10::ValueError>(
      [] { ResidualFSQ(options().soft_clamp_input_value(std::vector<double>{2.0})); },
      "left out with bound_hard_clamp");
  expect_throw_with<c10::ValueError>(
      [] {
        ResidualFSQ(options().bound_hard_clamp(false).soft_clamp_input_value(
            std::vector<double>{2.0, 1.0}));
      },
      "a positive finite number, or 3 of them");
  expect_throw_with<c10::ValueError>(
      [] { ResidualFSQ(options().quantize_dropout(true).quantize_dropout_cutoff_index(3)); },
      "cutoff_index");
  expect_throw_with<c10::ValueError>(
      [] { GroupedResidualFSQ(GroupedResidualFSQOptions(8, options()).groups(3)); }, "multiple");
  ResidualFSQ stack(options());
  expect_throw_with<c10::ValueError>([&] { stack(at::zeros({2, 3, 5})); }, "features");
  expect_throw_with<c10::ValueError>(
      [&] { stack->get_output_from_indices(at::zeros({1, 2}, at::kLong)); }, "levels");
  expect_throw_with<c10::IndexError>(
      [&] { stack->get_output_from_indices(at::full({1, 3}, 160, at::kLong)); }, "160");
}

TEST(ResidualFSQTest, SaysWhatItIs) {
  std::stringstream text;
  text << *ResidualFSQ(options().dim(6));
  EXPECT_NE(text.str().find("ResidualFSQ(levels=[8, 5, 4], num_quantizers=3, dim=6)"),
            std::string::npos);
}

}  // namespace
}  // namespace torchvq::residual_fsq_test
