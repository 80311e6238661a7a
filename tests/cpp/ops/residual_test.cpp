#include <torchvq/ops/residual_beam_search.h>
#include <torchvq/ops/residual_decode.h>
#include <torchvq/ops/residual_encode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "expect_throw.h"
#include "kernels/cpu/cpu_level.h"

namespace torchvq::residual_test {
namespace {

using kernels::CpuLevel;
using testing::expect_throw_with;

struct Stack {
  at::Tensor x;
  std::vector<at::Tensor> codebooks;
};

Stack make_stack(int64_t tokens, int64_t dim, const std::vector<int64_t>& sizes) {
  at::manual_seed(0);
  Stack stack;
  stack.x = at::randn({1, tokens, dim});
  for (const int64_t size : sizes) stack.codebooks.push_back(at::randn({1, size, dim}) * 0.7);
  return stack;
}

struct Path {
  std::vector<int64_t> codes;
  std::vector<float> left;
  double score = 0;
};

/// Oracle: all extensions of all paths, plain loops. The score of beam search is the residual; that
/// of the nearest code, `half_square - product`, differs from it only in the last bits.
std::vector<int64_t> best_path(const float* row, const Stack& stack, int64_t beam) {
  const int64_t dim = stack.x.size(2);
  std::vector<Path> paths = {{{}, std::vector<float>(row, row + dim), 0}};
  for (const auto& codebook : stack.codebooks) {
    std::vector<Path> next;
    for (const auto& path : paths) {
      for (int64_t k = 0; k < codebook.size(1); ++k) {
        const float* code = codebook.const_data_ptr<float>() + k * dim;
        Path longer = path;
        longer.codes.push_back(k);
        longer.score = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const double r = path.left[d], c = code[d];
          longer.score += beam == 1 ? c * c / 2 - r * c : (r - c) * (r - c);
          longer.left[d] = path.left[d] - code[d];
        }
        next.push_back(std::move(longer));
      }
    }
    std::stable_sort(next.begin(), next.end(),
                     [](const Path& a, const Path& b) { return a.score < b.score; });
    next.resize(std::min(next.size(), static_cast<size_t>(beam)));
    std::sort(next.begin(), next.end(),
              [](const Path& a, const Path& b) { return a.codes < b.codes; });
    paths = std::move(next);
  }
  return std::min_element(paths.begin(), paths.end(),
                          [](const Path& a, const Path& b) { return a.score < b.score; })
      ->codes;
}

void expect_paths(const at::Tensor& indices, const Stack& stack, int64_t beam) {
  const int64_t dim = stack.x.size(2), levels = indices.size(2);
  for (int64_t t = 0; t < stack.x.size(1); ++t) {
    const auto wanted = best_path(stack.x.const_data_ptr<float>() + t * dim, stack, beam);
    const auto* found = indices.const_data_ptr<int64_t>() + t * levels;
    ASSERT_EQ(std::vector<int64_t>(found, found + levels), wanted) << "token " << t;
  }
}

/// Every instruction set; those that the machine lacks are replaced by its best one.
class ResidualLevelTest : public ::testing::TestWithParam<CpuLevel> {
 protected:
  void SetUp() override { kernels::limit_cpu_level(GetParam()); }
  void TearDown() override { kernels::limit_cpu_level(CpuLevel::kAmx); }
};

TEST_P(ResidualLevelTest, EncodeTakesTheNearestCodeOfEachLevel) {
  for (const int64_t tokens : {1, 7, 13, 250}) {
    const auto stack = make_stack(tokens, 29, {5, 33, 70});
    const auto [quantized, indices] = ops::residual_encode(stack.x, stack.codebooks);
    expect_paths(indices, stack, 1);
    EXPECT_TRUE(at::equal(quantized, ops::residual_decode(indices, stack.codebooks)));
  }
}

TEST_P(ResidualLevelTest, BeamKeepsTheBestPaths) {
  for (const int64_t beam : {2, 4, 16, 17, 70}) {
    const auto stack = make_stack(15, 19, {3, 40, 65});
    expect_paths(ops::residual_beam_search(stack.x, stack.codebooks, beam), stack, beam);
  }
}

TEST_P(ResidualLevelTest, BeamOverManyTokensUsesProductsOfCodebooks) {
  const auto stack = make_stack(150, 40, {16, 16, 16, 16});
  expect_paths(ops::residual_beam_search(stack.x, stack.codebooks, 5), stack, 5);
}

std::string level_name(const ::testing::TestParamInfo<CpuLevel>& info) {
  const char* names[] = {"default", "avx2", "avx512", "amx"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Levels, ResidualLevelTest,
                         ::testing::Values(CpuLevel::kDefault, CpuLevel::kAvx2, CpuLevel::kAvx512,
                                           CpuLevel::kAmx),
                         level_name);

TEST(ResidualEncodeTest, MaskAndDepthGiveMinusOneAndZeros) {
  const auto stack = make_stack(6, 4, {5, 5, 5});
  const auto mask = at::tensor({1, 0, 1, 1, 0, 1}, at::kLong).to(at::kBool).unsqueeze(0);
  const auto options = ops::ResidualEncodeOptions().mask(mask).depth(at::tensor({2}, at::kLong));
  const auto [quantized, indices] = ops::residual_encode(stack.x, stack.codebooks, options);
  const auto all = ops::residual_encode(stack.x, {stack.codebooks[0], stack.codebooks[1]});
  EXPECT_TRUE(indices.select(2, 2).eq(-1).all().item<bool>());
  for (int64_t t = 0; t < 6; ++t) {
    const bool real = mask[0][t].item<bool>();
    EXPECT_TRUE(at::equal(indices[0][t].slice(0, 0, 2),
                          real ? all.indices[0][t] : at::full({2}, -1, at::kLong)));
    EXPECT_TRUE(at::equal(quantized[0][t], real ? all.quantized[0][t] : at::zeros({4})));
  }
}

TEST(ResidualEncodeTest, RowsThatAreNotFiniteAreNaN) {
  auto stack = make_stack(12, 4, {5, 5});
  stack.x[0][3][1] = std::numeric_limits<float>::infinity();
  const auto [quantized, indices] = ops::residual_encode(stack.x, stack.codebooks);
  EXPECT_TRUE(quantized[0][3].isnan().all().item<bool>());
  EXPECT_TRUE(indices[0][3].eq(0).all().item<bool>());
  EXPECT_EQ(quantized.isnan().sum().item<int64_t>(), 4);
}

TEST(ResidualDecodeTest, GradientReachesEachCodebook) {
  auto stack = make_stack(1, 3, {4, 4});
  for (auto& codebook : stack.codebooks) codebook.requires_grad_();
  const auto indices = at::tensor({2, -1, 2, 1}, at::kLong).reshape({1, 2, 2});
  const auto loss = ops::residual_decode(indices, stack.codebooks).sum();
  const auto grads = torch::autograd::grad({loss}, {stack.codebooks[0], stack.codebooks[1]});
  EXPECT_TRUE(at::equal(grads[0][0].sum(-1), at::tensor({0.0F, 0.0F, 6.0F, 0.0F})));
  EXPECT_TRUE(at::equal(grads[1][0].sum(-1), at::tensor({0.0F, 3.0F, 0.0F, 0.0F})));
}

TEST(ResidualTest, BadArgumentsAreNamed) {
  const auto stack = make_stack(3, 4, {5, 5});
  expect_throw_with<c10::ValueError>([&] { ops::residual_encode(stack.x, {}); },
                                     "residual_encode: expected codebooks to have at least 1");
  expect_throw_with<c10::ValueError>(
      [&] {
        const auto options = ops::ResidualEncodeOptions().metric("dot");
        ops::residual_encode(stack.x, stack.codebooks, options);
      },
      "residual_encode: expected metric to be");
  expect_throw_with<c10::IndexError>(
      [&] { ops::residual_decode(at::full({1, 3, 2}, 5, at::kLong), stack.codebooks); },
      "residual_decode: expected indices to be in [-1, 5), but got 5");
  expect_throw_with<c10::ValueError>(
      [&] { ops::residual_beam_search(stack.x, stack.codebooks, 0); },
      "residual_beam_search: expected beam to be at least 1");
}

}  // namespace
}  // namespace torchvq::residual_test
