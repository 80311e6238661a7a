#include <torchvq/modules/fsq.h>

#include <sstream>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/modules/lfq.h>
#include <torchvq/modules/state_dict.h>

#include "expect_throw.h"

namespace torchvq::fsq_test {
namespace {

using namespace torchvq::testing;

torch::Tensor normal(at::IntArrayRef shape, int64_t seed = 0) {
  torch::manual_seed(seed);
  return torch::randn(shape);
}

const std::vector<int64_t> kLevels{8, 5, 5, 5};

TEST(FSQTest, RoundsTheBoundToTheNearestLevel) {
  for (const bool clamp : {false, true}) {
    FSQ fsq(FSQOptions({3, 5, 9}).bound_hard_clamp(clamp));
    const auto x = normal({2, 400, 3});
    const auto output = fsq(x);
    // Odd levels: round(1.001 h b(z)) / h.
    const auto half = torch::tensor({1.0, 2.0, 4.0}, at::kDouble);
    const auto wide = x.to(at::kDouble);
    const auto bounded = (clamp ? wide.clamp(-1, 1) : wide.tanh()) * half * 1.001;
    const auto expected = bounded.round() / half;
    EXPECT_TRUE(at::allclose(output.quantized.to(at::kDouble), expected, 1e-6, 1e-7));
    const auto digits = (bounded.round() + half).to(at::kLong);
    const auto basis = torch::tensor({1, 3, 15}, at::kLong);
    EXPECT_TRUE(at::equal(output.indices, (digits * basis).sum(-1)));
  }
}

TEST(FSQTest, SymmetricLevelsAreEvenlySpaced) {
  FSQ fsq(FSQOptions({2, 3, 4, 8}).preserve_symmetry(true));
  const auto z = torch::linspace(-9, 9, 4001).unsqueeze(-1).expand({4001, 4});
  const auto codes = fsq->quantize(z);
  for (int64_t j = 0; j < 4; ++j) {
    const auto found = std::get<0>(at::_unique2(codes.select(1, j)));
    const auto expected = torch::linspace(-1, 1, fsq->options.levels()[j]);
    EXPECT_TRUE(at::allclose(found, expected, 0, 1e-6)) << j;
  }
  EXPECT_TRUE(at::equal(codes, fsq->symmetry_preserving_bound(z)));
}

TEST(FSQTest, TheGradientIsThatOfTheBound) {
  FSQ fsq(FSQOptions({5, 5}).preserve_symmetry(true));
  const auto x = normal({3, 6, 2}).requires_grad_();
  fsq(x).quantized.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), 1 - x.detach().tanh().square(), 1e-5, 1e-6));
}

TEST(FSQTest, EveryLayoutIsThatOfTokens) {
  FSQ fsq(FSQOptions(kLevels).dim(12).num_codebooks(2));
  FSQ first(FSQOptions(kLevels).dim(12).num_codebooks(2).channel_first(true));
  load_state_dict(*first, state_dict(*fsq));
  const auto tokens = normal({2, 30, 12});
  const auto expected = fsq(tokens);
  EXPECT_EQ(expected.indices.sizes(), at::IntArrayRef({2, 30, 2}));
  const auto image = fsq(tokens.transpose(1, 2).reshape({2, 12, 5, 6}));
  EXPECT_TRUE(at::allclose(image.quantized.flatten(2).transpose(1, 2), expected.quantized));
  EXPECT_TRUE(at::equal(image.indices.flatten(1, 2), expected.indices));
  const auto moved = first(tokens.transpose(1, 2));
  EXPECT_TRUE(at::allclose(moved.quantized.transpose(1, 2), expected.quantized));
  EXPECT_TRUE(at::allclose(first->indices_to_codes(moved.indices), moved.quantized, 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(fsq->indices_to_codes(image.indices), image.quantized, 1e-6, 1e-6));
  const auto vectors = fsq(tokens.select(1, 0));
  EXPECT_TRUE(at::equal(vectors.indices, expected.indices.select(1, 0)));
}

TEST(FSQTest, RandomCodesRoundTrip) {
  for (const auto& levels :
       {std::vector<int64_t>(6, 17), std::vector<int64_t>(11, 5), std::vector<int64_t>(12, 8)}) {
    for (const bool symmetric : {false, true}) {
      FSQ fsq(FSQOptions(levels).preserve_symmetry(symmetric));
      torch::manual_seed(1);
      const auto indices = torch::randint(fsq->codebook_size(), {100000}, at::kLong);
      const auto codes = fsq->indices_to_codes(indices);
      EXPECT_TRUE(at::equal(fsq->codes_to_indices(codes), indices));
    }
  }
}

TEST(FSQTest, MaskedTokensAreZeroAndTheirIndicesMinusOne) {
  FSQ fsq(FSQOptions(kLevels).dim(12));
  auto x = normal({2, 5, 12});
  const auto mask = torch::tensor({1, 1, 1, 0, 0, 1, 0, 0, 0, 0}).view({2, 5}).to(at::kBool);
  x = at::where(mask.unsqueeze(-1), x, std::nan("")).requires_grad_();
  const auto output = fsq(x, mask);
  EXPECT_TRUE(output.quantized.isfinite().all().item<bool>());
  EXPECT_EQ(output.indices.lt(0).sum().item<int64_t>(), 6);
  EXPECT_EQ(output.quantized.index({mask.logical_not()}).abs().sum().item<double>(), 0);
  output.quantized.sum().backward();
  EXPECT_EQ(x.grad().index({mask.logical_not()}).abs().sum().item<double>(), 0);
  EXPECT_GT(x.grad().index({mask}).abs().sum().item<double>(), 0);
}

TEST(FSQTest, TokensThatAreNotFiniteAreSeen) {
  FSQ fsq(FSQOptions{kLevels});
  auto x = at::zeros({1, 2, 4});
  x[0][0][2] = std::numeric_limits<float>::infinity();
  const auto output = fsq(x);
  EXPECT_TRUE(output.quantized[0][0].isnan().all().item<bool>());
  EXPECT_TRUE(output.quantized[0][1].isfinite().all().item<bool>());
  EXPECT_EQ(output.indices[0][0].item<int64_t>(), 0);
}

TEST(FSQTest, NoiseIsHalfAStepAtMostAndInTrainingOnly) {
  FSQ fsq(FSQOptions({3, 9}).preserve_symmetry(true).noise_dropout(0.25));
  const auto x = normal({1, 20000, 2});
  const auto output = fsq(x);
  EXPECT_EQ(fsq->rng[1].item<int64_t>(), 1);
  const auto noise = output.quantized - fsq->indices_to_codes(output.indices);
  const auto relative = noise.abs() / torch::tensor({0.5, 0.125});
  EXPECT_LE(relative.max().item<double>(), 1 + 1e-6);
  EXPECT_NEAR(relative.gt(0).to(at::kFloat).mean().item<double>(), 0.25, 0.01);
  fsq->eval();
  EXPECT_TRUE(at::equal(fsq(x).quantized, fsq->indices_to_codes(output.indices)));
  EXPECT_EQ(fsq->rng[1].item<int64_t>(), 1);
}

TEST(FSQTest, RotationIsUndoneAndStaysExactInHalfPrecision) {
  FSQ fsq(
      FSQOptions({5, 5, 5}).orthogonal_rotation(true).noise_dropout(0.5).preserve_symmetry(true));
  const auto rotation = fsq->orthogonal_rot.clone();
  EXPECT_TRUE(at::allclose(rotation.matmul(rotation.t()), at::eye(3), 1e-5, 1e-6));
  const auto seed = fsq->rng[0].item<int64_t>();
  fsq->to(at::kBFloat16);
  EXPECT_TRUE(at::equal(fsq->orthogonal_rot, rotation));
  EXPECT_EQ(fsq->rng[0].item<int64_t>(), seed);
  fsq->eval();
  const auto x = normal({2, 7, 3});
  const auto output = fsq(x);
  EXPECT_TRUE(at::allclose(output.quantized.matmul(rotation), fsq->quantize(x.matmul(rotation)),
                           1e-5, 1e-6));
}

TEST(FSQTest, HalfPrecisionInputsAndModules) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    FSQ fsq(FSQOptions(kLevels).dim(6));
    fsq->to(dtype);
    const auto output = fsq(normal({2, 3, 6}).to(dtype));
    EXPECT_EQ(output.quantized.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(fsq->indices_to_codes(output.indices), output.quantized));
  }
}

TEST(FSQTest, ClonesAndStateKeepWhatThereIs) {
  const auto options =
      FSQOptions({5, 5}).dim(3).orthogonal_rotation(true).noise_dropout(0.5).preserve_symmetry(
          true);
  FSQ fsq(options), other(options);
  const auto x = normal({2, 3, 3});
  fsq(x);
  load_state_dict(*other, state_dict(*fsq));
  FSQ copy(std::dynamic_pointer_cast<FSQImpl>(fsq->clone()));
  const auto expected = fsq(x).quantized;
  EXPECT_TRUE(at::equal(other(x).quantized, expected));
  EXPECT_TRUE(at::equal(copy(x).quantized, expected));
  // The reference keeps no generator.
  auto state = state_dict(*fsq);
  state.erase("rng");
  load_state_dict(*other, state);
  EXPECT_EQ(other->rng[1].item<int64_t>(), 0);
  EXPECT_EQ(state_dict(*FSQ(FSQOptions({5, 5}))).size(), 0U);
}

TEST(FSQTest, BadOptionsAndInputsAreRefused) {
  expect_throw_with<c10::ValueError>(
      [] { FSQ(FSQOptions({2, 3})); },
      "levels to be 3 or more without preserve_symmetry, but got [2, 3]");
  expect_throw_with<c10::ValueError>([] { FSQ{FSQOptions{std::vector<int64_t>()}}; },
                                     "at least one");
  expect_throw_with<c10::ValueError>([] { FSQ(FSQOptions({5}).noise_dropout(0.5)); },
                                     "noise_dropout");
  expect_throw_with<c10::ValueError>([] { FSQ(FSQOptions({5}).num_codebooks(0)); },
                                     "num_codebooks");
  FSQ fsq(FSQOptions{kLevels});
  expect_throw_with<c10::ValueError>([&] { fsq(at::zeros({2, 3, 5})); }, "features");
  expect_throw_with<c10::TypeError>([&] { fsq(at::zeros({2, 3, 4}, at::kLong)); }, "floating");
  expect_throw_with<c10::IndexError>([&] { fsq->indices_to_codes(torch::tensor({1000})); }, "1000");
  expect_throw_with<c10::ValueError>([&] { fsq->codes_to_indices(at::zeros({3})); }, "features");
}

TEST(FSQTest, SaysWhatItIs) {
  std::stringstream text;
  text << *FSQ(FSQOptions(kLevels).dim(256));
  EXPECT_NE(text.str().find("FSQ(levels=[8, 5, 5, 5], dim=256"), std::string::npos);
}

/// Calls `forward` under autocast to bfloat16.
template <typename Forward>
auto under_autocast(const Forward& forward) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  auto result = forward();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return result;
}

TEST(FSQTest, RotationsAndMapsAreNotRoundedUnderAutocast) {
  const torch::NoGradGuard no_grad;
  FSQ fsq(FSQOptions({5, 5, 5}).orthogonal_rotation(true));
  LFQ lfq(LFQOptions().dim(6).spherical(true).orthogonal_rotation(true));
  LFQ cosine(LFQOptions().dim(6).codebook_size(16).cosine_sim_project_in(true));
  const auto check = [](auto& module, const torch::Tensor& x) {
    module->eval();
    const auto found = under_autocast([&] { return module(x); });
    EXPECT_TRUE(at::equal(found.indices, module(x).indices));
  };
  check(fsq, at::randn({2, 2000, 3}));
  check(lfq, at::randn({2, 2000, 6}));
  check(cosine, at::randn({2, 2000, 6}));
  const auto x = at::randn({2, 2000, 3});
  const auto found = under_autocast([&] { return fsq(x); });
  EXPECT_TRUE(at::equal(fsq->indices_to_codes(found.indices), found.quantized));
}

}  // namespace
}  // namespace torchvq::fsq_test
