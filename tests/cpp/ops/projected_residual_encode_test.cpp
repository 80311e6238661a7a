#include <torchvq/ops/projected_residual_encode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "expect_throw.h"
#include "kernels/cpu/cpu_level.h"

namespace torchvq::projected_residual_encode_test {
namespace {

using kernels::CpuLevel;
using testing::expect_throw_with;
using Row = std::vector<double>;

constexpr int64_t kSizes[] = {40, 1, 23};

const auto kCosine = ops::ProjectedResidualEncodeOptions().metric("cosine");

struct Problem {
  at::Tensor x;
  ops::ProjectedLevels levels;
};

Problem make_problem(int64_t tokens, int64_t features, int64_t dim,
                     at::ScalarType dtype = at::kFloat) {
  at::manual_seed(0);
  const auto normal = [&](at::IntArrayRef shape, double scale) {
    return at::randn(shape, dtype) * scale;
  };
  Problem problem{normal({1, tokens, features}, 1), {}};
  for (const int64_t size : kSizes) {
    problem.levels.codebooks.push_back(normal({size, dim}, 1));
    problem.levels.in_weights.push_back(normal({dim, features}, 0.2));
    problem.levels.in_biases.push_back(normal({dim}, 0.1));
    problem.levels.out_weights.push_back(normal({features, dim}, 0.3));
    problem.levels.out_biases.push_back(normal({features}, 0.1));
  }
  return problem;
}

Row row_of(const at::Tensor& rows, int64_t i) {
  const auto row = rows.reshape({-1, rows.size(-1)})[i].to(at::kDouble).contiguous();
  return {row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel()};
}

/// weight times row, plus bias, in float64.
Row product(const at::Tensor& weight, const Row& row, const at::Tensor& bias) {
  Row result = row_of(bias.unsqueeze(0), 0);
  for (size_t i = 0; i < result.size(); ++i) {
    const Row factors = row_of(weight, static_cast<int64_t>(i));
    for (size_t j = 0; j < row.size(); ++j) result[i] += factors[j] * row[j];
  }
  return result;
}

double squared_distance(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  return sum;
}

Row unit(Row row) {
  const double norm = std::sqrt(squared_distance(row, Row(row.size(), 0.0)));
  for (double& value : row) value /= std::max(norm, 1e-12);
  return row;
}

void expect_near(const Row& found, const Row& wanted, double tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], tolerance);
}

/// Oracle: plain float64 loops along the found codes, which it checks to be the nearest.
void expect_walk(const Problem& problem, const ops::ProjectedResidualEncodeOutput& found,
                 bool cosine, double tolerance) {
  const auto& levels = problem.levels;
  const auto dim = static_cast<size_t>(levels.codebooks[0].size(1));
  for (int64_t t = 0; t < problem.x.size(1); ++t) {
    Row left = row_of(problem.x, t), total(left.size(), 0.0);
    const Row latents = row_of(found.latents, t), errors = row_of(found.errors, t);
    for (size_t n = 0; n < levels.codebooks.size(); ++n) {
      const Row latent(latents.begin() + static_cast<std::ptrdiff_t>(n * dim),
                       latents.begin() + static_cast<std::ptrdiff_t>((n + 1) * dim));
      expect_near(latent, product(levels.in_weights[n], left, levels.in_biases[n]), tolerance);
      const auto index = found.indices[0][t][static_cast<int64_t>(n)].item<int64_t>();
      const auto distance = [&](int64_t k) {
        const Row code = row_of(levels.codebooks[n], k);
        return cosine ? squared_distance(unit(latent), unit(code)) : squared_distance(latent, code);
      };
      for (int64_t k = 0; k < levels.codebooks[n].size(0); ++k) {
        EXPECT_LE(distance(index), distance(k) + tolerance);
      }
      const Row code = row_of(levels.codebooks[n], index);
      EXPECT_NEAR(errors[n], squared_distance(latent, code), 20 * tolerance);
      const Row part = product(levels.out_weights[n], code, levels.out_biases[n]);
      for (size_t c = 0; c < left.size(); ++c) left[c] -= part[c], total[c] += part[c];
    }
    expect_near(row_of(found.quantized, t), total, tolerance);
  }
}

void expect_equal(const ops::ProjectedResidualEncodeOutput& a,
                  const ops::ProjectedResidualEncodeOutput& b) {
  EXPECT_TRUE(at::equal(a.quantized, b.quantized));
  EXPECT_TRUE(at::equal(a.indices, b.indices));
  EXPECT_TRUE(at::equal(a.latents, b.latents));
  EXPECT_TRUE(at::equal(a.errors, b.errors));
}

/// Every instruction set; those that the machine lacks are replaced by its best one.
class ProjectedResidualLevelTest : public ::testing::TestWithParam<CpuLevel> {
 protected:
  void SetUp() override { kernels::limit_cpu_level(GetParam()); }
  void TearDown() override { kernels::limit_cpu_level(CpuLevel::kAmx); }
};

TEST_P(ProjectedResidualLevelTest, WalksAsPlainLoopsDo) {
  for (const int64_t tokens : {1, 7, 60}) {
    for (const int64_t dim : {3, 8, 20}) {
      const auto problem = make_problem(tokens, 37, dim);
      const auto found = ops::projected_residual_encode(problem.x, problem.levels, kCosine);
      expect_walk(problem, found, true, 2e-5);
      expect_walk(problem, ops::projected_residual_encode(problem.x, problem.levels), false, 2e-5);
    }
  }
}

TEST_P(ProjectedResidualLevelTest, Float64WalksAsPlainLoopsDo) {
  const auto problem = make_problem(20, 37, 8, at::kDouble);
  const auto found = ops::projected_residual_encode(problem.x, problem.levels, kCosine);
  expect_walk(problem, found, true, 1e-13);
}

TEST_P(ProjectedResidualLevelTest, GivesTheBitsOfEveryOtherInstructionSet) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t tokens : {1, 5, 130}) {
      for (const int64_t dim : {5, 8, 17}) {
        const auto problem = make_problem(tokens, 45, dim, dtype);
        const auto found = ops::projected_residual_encode(problem.x, problem.levels, kCosine);
        kernels::limit_cpu_level(CpuLevel::kDefault);
        expect_equal(ops::projected_residual_encode(problem.x, problem.levels, kCosine), found);
        kernels::limit_cpu_level(GetParam());
      }
    }
  }
}

const auto projected_level_name = [](const auto& info) {
  const char* const names[] = {"Default", "Avx2", "Avx512"};
  return names[static_cast<size_t>(info.param)];
};

INSTANTIATE_TEST_SUITE_P(Levels, ProjectedResidualLevelTest,
                         ::testing::Values(CpuLevel::kDefault, CpuLevel::kAvx2, CpuLevel::kAvx512),
                         projected_level_name);

TEST(ProjectedResidualEncodeTest, FramesAloneAreThoseOfTheClip) {
  const auto problem = make_problem(50, 32, 8);
  const auto whole = ops::projected_residual_encode(problem.x, problem.levels, kCosine);
  for (int64_t t = 0; t < 50; ++t) {
    const auto frame =
        ops::projected_residual_encode(problem.x.narrow(1, t, 1), problem.levels, kCosine);
    expect_equal(frame, {whole.quantized.narrow(1, t, 1), whole.indices.narrow(1, t, 1),
                         whole.latents.narrow(1, t, 1), whole.errors.narrow(1, t, 1)});
  }
}

TEST(ProjectedResidualEncodeTest, BadArgumentsAreNamed) {
  auto problem = make_problem(3, 10, 8);
  expect_throw_with<c10::ValueError>([&] { ops::projected_residual_encode(problem.x, {}); },
                                     "expected codebooks to have at least 1 level");
  const auto angle = ops::ProjectedResidualEncodeOptions().metric("angle");
  expect_throw_with<c10::ValueError>(
      [&] { ops::projected_residual_encode(problem.x, problem.levels, angle); },
      "projected_residual_encode: expected metric to be");
  problem.levels.out_biases.pop_back();
  expect_throw_with<c10::ValueError>(
      [&] { ops::projected_residual_encode(problem.x, problem.levels); },
      "projected_residual_encode: expected out_biases to have 3 tensors (levels), but got 2");
}

}  // namespace
}  // namespace torchvq::projected_residual_encode_test
