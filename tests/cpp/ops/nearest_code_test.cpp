#include <torchvq/ops/nearest_code.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "expect_throw.h"
#include "kernels/cpu/cpu_level.h"

namespace torchvq::nearest_code_test {
namespace {

using kernels::CpuLevel;
using ops::nearest_code;
using ops::NearestCodeOptions;
using testing::expect_throw_with;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Oracle: the specified scores, one pair at a time, in plain float64 loops.
std::vector<int64_t> expected_indices(const at::Tensor& given_x, const at::Tensor& given_codebook,
                                      bool cosine = false) {
  const bool single = given_x.scalar_type() == at::kFloat;
  const auto x = given_x.to(at::kDouble), codebook = given_codebook.to(at::kDouble);
  const auto row_norms = [cosine](const at::Tensor& rows) {
    std::vector<double> norms;
    for (int64_t i = 0; i < rows.size(0); ++i) {
      double sum = 0;
      for (int64_t d = 0; d < rows.size(1); ++d) {
        const double value = rows.const_data_ptr<double>()[i * rows.size(1) + d];
        sum += value * value;
      }
      norms.push_back(cosine ? std::sqrt(sum) : 1.0);
    }
    return norms;
  };
  const auto value = [single](const at::Tensor& rows, const std::vector<double>& norms, int64_t i,
                              int64_t d) {
    const double given = rows.const_data_ptr<double>()[i * rows.size(1) + d];
    const double unit = norms[i] == 0 ? 0.0 : given / norms[i];
    return single ? static_cast<double>(static_cast<float>(unit)) : unit;
  };
  const auto x_norms = row_norms(x), code_norms = row_norms(codebook);
  std::vector<int64_t> indices;
  for (int64_t n = 0; n < x.size(0); ++n) {
    double best = kInfinity;
    int64_t index = 0;
    for (int64_t k = 0; k < codebook.size(0); ++k) {
      double score = 0;
      for (int64_t d = 0; d < x.size(1); ++d) {
        const double a = value(x, x_norms, n, d), c = value(codebook, code_norms, k, d);
        score += cosine ? -(a * c) : c * c / 2 - a * c;
      }
      if (score < best) {
        best = score;
        index = k;
      }
    }
    indices.push_back(index);
  }
  return indices;
}

std::vector<int64_t> to_vector(const at::Tensor& indices) {
  const auto flat = indices.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

class LevelGuard {
 public:
  explicit LevelGuard(CpuLevel level) { kernels::limit_cpu_level(level); }
  ~LevelGuard() { kernels::limit_cpu_level(CpuLevel::kAmx); }
};

/// A level that the machine lacks runs as its best one, with the same results.
class NearestCodeLevelTest : public ::testing::TestWithParam<std::tuple<CpuLevel, int64_t>> {
 protected:
  NearestCodeLevelTest() : guard_(std::get<0>(GetParam())) { at::manual_seed(0); }
  int64_t size() const { return std::get<1>(GetParam()); }

 private:
  LevelGuard guard_;
};

TEST_P(NearestCodeLevelTest, OddDimensions) {
  const int64_t dim = std::max<int64_t>(1, size());  // no dimensions is an error, tested below
  for (const int64_t rows : {1, 9, 100}) {
    const auto x = at::randn({rows, dim}), codebook = at::randn({70, dim});
    EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
    EXPECT_EQ(to_vector(nearest_code(x, codebook, NearestCodeOptions().metric("cosine")).indices),
              expected_indices(x, codebook, true));
  }
}

TEST_P(NearestCodeLevelTest, Float64) {
  const int64_t dim = std::max<int64_t>(1, size());
  for (const int64_t rows : {1, 9, 100, 210}) {
    const auto codebook = at::randn({70, dim}, at::kDouble);
    const auto left = at::randint(70, {rows}, at::kLong),
               right = at::randint(70, {rows}, at::kLong);
    // Rows beside the middle of two codes: float32 does not tell which of them is nearer.
    const auto middles = (codebook.index_select(0, left) + codebook.index_select(0, right)) / 2;
    for (const auto& x :
         {at::randn({rows, dim}, at::kDouble), middles + 1e-9 * at::randn_like(middles)}) {
      EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
      EXPECT_EQ(to_vector(nearest_code(x, codebook, NearestCodeOptions().metric("cosine")).indices),
                expected_indices(x, codebook, true));
    }
  }
}

TEST_P(NearestCodeLevelTest, OddNumbersOfCodes) {
  const int64_t codes = std::max<int64_t>(1, size());
  for (const int64_t rows : {1, 9, 100}) {
    const auto x = at::randn({rows, 5}), codebook = at::randn({codes, 5});
    EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
  }
}

TEST_P(NearestCodeLevelTest, OddNumbersOfRows) {
  const auto x = at::randn({size(), 5}), codebook = at::randn({70, 5});
  EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
}

TEST_P(NearestCodeLevelTest, OddNumbersOfRowsAndCodesWithManyDimensions) {
  const auto x = at::randn({size(), 24}), codebook = at::randn({2 * size() + 1, 24});
  EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
  EXPECT_EQ(to_vector(nearest_code(x, codebook, NearestCodeOptions().metric("cosine")).indices),
            expected_indices(x, codebook, true));
}

TEST_P(NearestCodeLevelTest, FewRowsAmongCodesOfSeveralBlocks) {
  const int64_t rows = std::min<int64_t>(size(), 33);
  for (const int64_t dim : {37, 64}) {
    const auto codebook = at::randn({300, dim});
    const auto x = codebook.slice(0, 0, rows) * 0.51 + codebook.slice(0, 150, 150 + rows) * 0.5;
    EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
  }
}

TEST_P(NearestCodeLevelTest, RowsBetweenTwoCodesFarFromZero) {
  const auto codebook = at::randn({70, 24}).mul_(0.1).add_(1000);
  const auto left = at::randint(70, {size()}, at::kLong),
             right = at::randint(70, {size()}, at::kLong);
  const auto x = (codebook.index_select(0, left) + codebook.index_select(0, right)) / 2;
  EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
  EXPECT_EQ(to_vector(nearest_code(x, codebook, NearestCodeOptions().metric("cosine")).indices),
            expected_indices(x, codebook, true));
}

TEST_P(NearestCodeLevelTest, TopkBeginsWithTheNearestAndRepeatsNothing) {
  const auto x = at::randint(-2, 3, {size(), 6}).to(at::kFloat),
             codebook = at::randint(-2, 3, {90, 6}).to(at::kFloat);
  const auto nearest = nearest_code(x, codebook).indices;
  const auto several =
      nearest_code(x, codebook, NearestCodeOptions().topk(90).return_distances(true));
  EXPECT_TRUE(at::equal(several.indices.select(1, 0), nearest));
  EXPECT_TRUE(at::equal(std::get<0>(several.indices.sort(1)), at::arange(90).expand({size(), 90})));
  EXPECT_TRUE(several.distances.diff(1, 1).ge(0).all().item<bool>());
}

std::string level_and_size(const ::testing::TestParamInfo<NearestCodeLevelTest::ParamType>& info) {
  const char* names[] = {"Default", "Avx2", "Avx512", "Amx"};
  return names[static_cast<int>(std::get<0>(info.param))] + std::to_string(std::get<1>(info.param));
}

TEST_P(NearestCodeLevelTest, TokensThatAreAllTheSame) {
  // Codes that a product of the scale of the first cannot tell apart.
  auto codebook = at::randn({90, 24}) * 1e-6;
  codebook[0] *= 1e9;
  auto x = at::randn({size(), 24});
  x.slice(0, 0, size(), 2).zero_();
  x.slice(0, 1, size(), 4).copy_(at::full({24}, 1e-3));
  EXPECT_EQ(to_vector(nearest_code(x, codebook).indices), expected_indices(x, codebook));
}

INSTANTIATE_TEST_SUITE_P(LevelsAndSizes, NearestCodeLevelTest,
                         ::testing::Combine(::testing::Values(CpuLevel::kDefault, CpuLevel::kAvx2,
                                                              CpuLevel::kAvx512, CpuLevel::kAmx),
                                            ::testing::Values(0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17,
                                                              63, 64, 65, 333)),
                         level_and_size);

TEST(NearestCodeTest, TiesPickLowestIndex) {
  const auto codebook = at::tensor({3.f, 1.f, -1.f, 1.f}).unsqueeze(1);
  EXPECT_EQ(to_vector(nearest_code(at::zeros({20, 1}), codebook).indices),
            std::vector<int64_t>(20, 1));
}

TEST(NearestCodeTest, OptionsReachTheKernel) {
  const auto x = at::tensor({0.9f, 0.9f}).reshape({1, 2});
  const auto codebook = at::tensor({1.f, 1.f, 0.f, 0.f}).reshape({2, 2});
  const auto bias = at::tensor({10.f, 0.f});
  const auto out = nearest_code(
      x, codebook,
      NearestCodeOptions().bias(bias).topk(2).return_codes(true).return_distances(true));
  EXPECT_EQ(to_vector(out.indices), (std::vector<int64_t>{1, 0}));
  EXPECT_TRUE(at::equal(out.codes, codebook.flip(0).unsqueeze(0)));
  EXPECT_TRUE(at::allclose(out.distances, at::tensor({1.62f, 10.02f}).unsqueeze(0)));
}

TEST(NearestCodeTest, RowsThatAreNotFiniteGetIndexZeroAndNaN) {
  auto x = at::ones({20, 3});
  x[4][1] = std::numeric_limits<float>::quiet_NaN();
  x[9][2] = std::numeric_limits<float>::infinity();
  const auto codebook = at::arange(12, at::kFloat).reshape({4, 3}).flip(0);
  const auto out =
      nearest_code(x, codebook, NearestCodeOptions().return_codes(true).return_distances(true));
  EXPECT_EQ(out.codes.isnan().sum().item<int64_t>(), 2 * 3);
  EXPECT_EQ(out.distances.isnan().sum().item<int64_t>(), 2);
  EXPECT_EQ(out.indices[4].item<int64_t>(), 0);
  EXPECT_EQ(out.indices[9].item<int64_t>(), 0);
  EXPECT_EQ(out.indices.ne(0).sum().item<int64_t>(), 18);
}

TEST(NearestCodeTest, PaddingHasNoCode) {
  at::manual_seed(0);
  auto x = at::randn({2, 20, 3});
  const auto codebook = at::randn({2, 11, 3}), mask = at::rand({2, 20}) < 0.6;
  const auto asked = NearestCodeOptions().return_codes(true).return_distances(true);
  const auto expected = nearest_code(x, codebook, asked);
  x.masked_fill_(mask.logical_not().unsqueeze(-1), std::numeric_limits<float>::quiet_NaN());
  const auto found = nearest_code(x, codebook, NearestCodeOptions(asked).mask(mask));
  EXPECT_TRUE(at::equal(found.indices, expected.indices.masked_fill(mask.logical_not(), -1)));
  EXPECT_TRUE(at::equal(found.codes, expected.codes * mask.unsqueeze(-1)));
  EXPECT_TRUE(at::equal(found.distances, expected.distances * mask));
}

TEST(NearestCodeTest, NoRowsGiveEmptyResults) {
  const auto out =
      nearest_code(at::empty({2, 0, 3}), at::ones({4, 3}),
                   NearestCodeOptions().topk(2).return_codes(true).return_distances(true));
  EXPECT_EQ(out.indices.sizes(), at::IntArrayRef({2, 0, 2}));
  EXPECT_EQ(out.codes.sizes(), at::IntArrayRef({2, 0, 2, 3}));
  EXPECT_EQ(out.distances.sizes(), at::IntArrayRef({2, 0, 2}));
}

TEST(NearestCodeTest, UpdatingTheCodebookAfterwardsDoesNotChangeGradients) {
  at::manual_seed(0);
  const auto x = at::randn({10, 3}).requires_grad_();
  const auto codebook = at::randn({4, 3});
  const auto out =
      nearest_code(x, codebook, NearestCodeOptions().return_codes(true).return_distances(true));
  const auto expected = (x.detach() - out.codes.detach()) * 2;
  codebook.mul_(5);
  EXPECT_TRUE(at::allclose(torch::autograd::grad({out.distances.sum()}, {x})[0], expected));
}

TEST(NearestCodeTest, BadArgumentsAreReported) {
  const auto x = at::ones({2, 3}), codebook = at::ones({4, 3});
  expect_throw_with<c10::TypeError>([&] { nearest_code(x.to(at::kLong), codebook); },
                                    "nearest_code: expected x to be floating point, but got Long");
  expect_throw_with<c10::ValueError>(
      [&] { nearest_code(x, at::ones({4, 2})); },
      "nearest_code: expected codebook to have size 3 (dim of x) on axis -1");
  expect_throw_with<c10::ValueError>([&] { nearest_code(x, at::ones({0, 3})); },
                                     "nearest_code: expected codebook to have at least 1 code");
  expect_throw_with<c10::ValueError>([&] { nearest_code(at::ones({2, 0}), at::ones({4, 0})); },
                                     "nearest_code: expected x to have at least 1 dim");
  expect_throw_with<c10::ValueError>(
      [&] { nearest_code(x, codebook, NearestCodeOptions().metric("dot")); },
      "nearest_code: expected metric to be 'euclidean' or 'cosine', but got 'dot'");
  expect_throw_with<c10::ValueError>(
      [&] { nearest_code(x, codebook, NearestCodeOptions().topk(5)); },
      "nearest_code: expected topk to be in [1, 4], but got 5");
}

}  // namespace
}  // namespace torchvq::nearest_code_test
