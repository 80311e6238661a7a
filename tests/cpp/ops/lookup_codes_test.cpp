#include <torchvq/ops/lookup_codes.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "expect_throw.h"

namespace torchvq::lookup_codes_test {
namespace {

using testing::expect_throw_with;

/// Oracle: element by element in float64, no indexing operator of ATen.
at::Tensor expected_codes(const at::Tensor& codebook, const at::Tensor& indices) {
  auto codes = at::zeros({codebook.size(0), indices.size(1), codebook.size(2)}, at::kDouble);
  const auto source = codebook.to(at::kDouble);
  for (int64_t h = 0; h < indices.size(0); ++h) {
    for (int64_t n = 0; n < indices.size(1); ++n) {
      const auto index = indices[h][n].item<int64_t>();
      for (int64_t d = 0; d < codebook.size(2) && index >= 0; ++d) {
        codes[h][n][d] = source[h][index][d].item<double>();
      }
    }
  }
  return codes;
}

at::Tensor example_codebook(at::ScalarType dtype = at::kFloat) {
  return at::arange(2 * 3 * 4, at::kDouble).sub(11.5).reshape({2, 3, 4}).to(dtype);
}

at::Tensor example_indices() {
  return at::tensor({2, 0, -1, 1, 1, 2, 2, -1, 0, 0}, at::kLong).reshape({2, 5});
}

class LookupCodesDtypeTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(LookupCodesDtypeTest, ReturnsTheRowOfEachIndexAndZeroForMasked) {
  const auto codes = ops::lookup_codes(example_codebook(GetParam()), example_indices());
  EXPECT_EQ(codes.scalar_type(), GetParam());
  EXPECT_TRUE(
      at::equal(codes.to(at::kDouble), expected_codes(example_codebook(), example_indices())));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LookupCodesDtypeTest,
                         ::testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(LookupCodesTest, StridesDoNotMatter) {
  const auto codebook = example_codebook().transpose(0, 2).contiguous().transpose(0, 2);
  const auto indices = example_indices().t().contiguous().t();
  ASSERT_FALSE(codebook.is_contiguous());
  ASSERT_FALSE(indices.is_contiguous());
  EXPECT_TRUE(at::equal(ops::lookup_codes(codebook, indices).to(at::kDouble),
                        expected_codes(example_codebook(), example_indices())));
}

TEST(LookupCodesTest, NoTokensGiveAnEmptyResult) {
  const auto codes = ops::lookup_codes(example_codebook(), at::empty({2, 0}, at::kLong));
  EXPECT_EQ(codes.sizes(), at::IntArrayRef({2, 0, 4}));
}

TEST(LookupCodesTest, NonFiniteCodesStayInTheirOwnTokens) {
  auto codebook = example_codebook();
  codebook[0][2].fill_(std::numeric_limits<float>::quiet_NaN());
  const auto codes = ops::lookup_codes(codebook, example_indices());
  EXPECT_TRUE(codes[0][0].isnan().all().item<bool>());
  EXPECT_EQ(codes.isnan().sum().item<int64_t>(), codebook.size(2));
}

TEST(LookupCodesTest, GradientSumsTheTokensOfEachCode) {
  const auto codebook = example_codebook(at::kDouble).requires_grad_();
  const auto weights = at::arange(2 * 5 * 4, at::kDouble).reshape({2, 5, 4});
  const auto loss = (ops::lookup_codes(codebook, example_indices()) * weights).sum();
  const auto grad = torch::autograd::grad({loss}, {codebook})[0];

  auto expected = at::zeros_like(codebook, at::TensorOptions().requires_grad(false));
  const auto indices = example_indices();
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t n = 0; n < 5; ++n) {
      const auto index = indices[h][n].item<int64_t>();
      if (index >= 0) expected[h][index] += weights[h][n];
    }
  }
  EXPECT_TRUE(at::equal(grad, expected));
}

TEST(LookupCodesTest, BadArgumentsAreNamed) {
  const auto codebook = example_codebook();
  const auto indices = example_indices();
  expect_throw_with<c10::ValueError>(
      [&] { ops::lookup_codes(codebook[0], indices); },
      "lookup_codes: expected codebook to have 3 dimensions (H, K, D)");
  expect_throw_with<c10::ValueError>([&] { ops::lookup_codes(codebook, indices[0]); },
                                     "lookup_codes: expected indices to have 2 dimensions (H, N)");
  expect_throw_with<c10::ValueError>([&] { ops::lookup_codes(codebook, indices.slice(0, 0, 1)); },
                                     "lookup_codes: expected indices to have size 2");
  expect_throw_with<c10::ValueError>([&] { ops::lookup_codes(codebook.slice(1, 0, 0), indices); },
                                     "lookup_codes: expected codebook to have at least 1 code");
  expect_throw_with<c10::TypeError>([&] { ops::lookup_codes(codebook, indices.to(at::kInt)); },
                                    "lookup_codes: expected indices to be Long");
  expect_throw_with<c10::TypeError>([&] { ops::lookup_codes(codebook.to(at::kLong), indices); },
                                    "lookup_codes: expected codebook to be floating point");
  for (const int64_t bad : {int64_t{-2}, int64_t{3}}) {
    expect_throw_with<c10::IndexError>(
        [&] { ops::lookup_codes(codebook, indices.masked_fill(indices == 1, bad)); },
        "lookup_codes: expected indices to be in [-1, 3)");
  }
}

}  // namespace
}  // namespace torchvq::lookup_codes_test
