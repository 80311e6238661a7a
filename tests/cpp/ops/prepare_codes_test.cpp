#include <torchvq/ops/prepare_codes.h>
#include <torchvq/ops/residual_encode.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "expect_throw.h"
#include "kernels/cpu/cpu_level.h"
#include "kernels/cpu/prepared_codes.h"

namespace torchvq::prepare_codes_test {
namespace {

using kernels::CpuLevel;
using testing::expect_throw_with;

/// Oracle: the specification of nearest_code in plain loops.
int64_t nearest(const float* row, const at::Tensor& codes) {
  int64_t best = 0;
  double least = 0;
  for (int64_t k = 0; k < codes.size(0); ++k) {
    const float* code = codes.const_data_ptr<float>() + k * codes.size(1);
    double score = 0;
    for (int64_t d = 0; d < codes.size(1); ++d) {
      const double c = code[d];
      score += c * c / 2 - static_cast<double>(row[d]) * c;
    }
    if (k == 0 || score < least) best = k, least = score;
  }
  return best;
}

/// Rows near the midpoint of two codes.
at::Tensor close_rows(const at::Tensor& codes, int64_t rows, double distance) {
  const auto pair = at::randint(codes.size(0), {2, rows}, at::kLong);
  return (codes.index({pair[0]}) + codes.index({pair[1]})) / 2 +
         at::randn({rows, codes.size(1)}) * distance;
}

at::Tensor search(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& prepared) {
  const auto options = ops::ResidualEncodeOptions().prepared({prepared});
  return ops::residual_encode(x.unsqueeze(0), {codes}, options).indices.flatten();
}

void expect_nearest(const at::Tensor& x, const at::Tensor& codes) {
  const auto found = search(x, codes, ops::prepare_codes(codes));
  for (int64_t row = 0; row < x.size(0); ++row) {
    ASSERT_EQ(found[row].item<int64_t>(),
              nearest(x.const_data_ptr<float>() + row * x.size(1), codes))
        << "row " << row << " of " << x.size(0) << ", " << codes.size(0) << " codes of "
        << codes.size(1);
  }
}

/// Every instruction set; those that the machine lacks are replaced by its best one.
class PreparedLevelTest : public ::testing::TestWithParam<CpuLevel> {
 protected:
  void SetUp() override {
    kernels::limit_cpu_level(GetParam());
    at::manual_seed(0);
  }
  void TearDown() override { kernels::limit_cpu_level(CpuLevel::kAmx); }
};

TEST_P(PreparedLevelTest, RowsBetweenTwoCodesFindTheNearer) {
  for (const int64_t dim : {16, 17, 29, 64, 130}) {
    const auto codes = at::randn({301, dim}) + 5;
    for (const int64_t rows : {1, 2, 4, 7, 33}) {
      for (const double distance : {0.0, 1e-6, 1e-3, 0.05}) {
        expect_nearest(close_rows(codes, rows, distance), codes);
      }
    }
  }
}

TEST_P(PreparedLevelTest, ExtremeIntegersDoNotOverflow) {
  const auto signs = at::randint(2, {100, 1030}, at::kFloat) * 2 - 1;
  expect_nearest(signs.slice(0, 0, 20) * 3, signs);
  expect_nearest(signs.slice(0, 0, 2) * 3, signs);
  const auto spikes = at::eye(600).slice(0, 0, 100);
  expect_nearest(spikes.slice(0, 0, 20) * -7 + 1e-3, spikes);
}

TEST_P(PreparedLevelTest, WithoutItsBoundACopyFindsOtherCodes) {
  // Integers, so that rows are exact, each between two codes; the mean of all codes is zero.
  auto x = at::randint(-126, 127, {32, 64}, at::kFloat);
  x.select(1, 0).fill_(127);
  const auto away = at::randn({32, 64}) * 16;
  const auto codes = at::cat({x + away, x - away * 1.01, -x - away, -x + away * 1.01});
  auto prepared = ops::prepare_codes(codes);
  const auto exact = search(x, codes, prepared);
  auto* const bytes = prepared.mutable_data_ptr<uint8_t>();
  const kernels::PreparedCodes copy = {bytes, 128, 64};
  for (int64_t panel = 0; panel < kernels::prepared_panels(128); ++panel) {
    auto& facts =
        *reinterpret_cast<kernels::PreparedPanel*>(bytes + (copy.panel(panel) - copy.bytes));
    for (int64_t j = 0; j < kernels::kPreparedCodes; ++j) {
      facts.slopes[j] = 0;
      facts.offsets[j] += facts.intercepts[j];
      facts.intercepts[j] = 0;
    }
  }
  EXPECT_FALSE(at::equal(search(x, codes, prepared), exact));
}

TEST_P(PreparedLevelTest, TheBytesDoNotDependOnTheInstructionSet) {
  const auto codes = at::randn({70, 37});
  const auto prepared = ops::prepare_codes(codes);
  kernels::limit_cpu_level(CpuLevel::kDefault);
  EXPECT_TRUE(at::equal(ops::prepare_codes(codes), prepared));
}

std::string level_name(const ::testing::TestParamInfo<CpuLevel>& info) {
  const char* names[] = {"default", "avx2", "avx512", "amx"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Levels, PreparedLevelTest,
                         ::testing::Values(CpuLevel::kDefault, CpuLevel::kAvx2, CpuLevel::kAvx512,
                                           CpuLevel::kAmx),
                         level_name);

TEST(PrepareCodesTest, BadArgumentsAreNamed) {
  expect_throw_with<c10::ValueError>([] { ops::prepare_codes(at::zeros({16})); },
                                     "prepare_codes: expected codebook to have 2 or 3 dimensions");
  expect_throw_with<c10::TypeError>([] { ops::prepare_codes(at::zeros({4, 16}, at::kLong)); },
                                    "prepare_codes: expected codebook to be floating point");
  const auto codes = at::zeros({40, 16});
  expect_throw_with<c10::ValueError>(
      [&] { search(at::zeros({3, 16}), codes, ops::prepare_codes(at::zeros({17, 16}))); },
      "residual_encode: expected prepared to have shape");
}

}  // namespace
}  // namespace torchvq::prepare_codes_test
