// The losses through their C++ functions: values by hand, defaults, messages. The Python tests
// (tests/python/test_<op>.py) compare them with formulas, finite differences and the reference.
#include <torchvq/ops/codebook_diversity_loss.h>
#include <torchvq/ops/commitment_cross_entropy.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/orthogonal_loss.h>

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "expect_throw.h"
#include "kernels/cpu/cpu_level.h"

namespace torchvq::losses_test {
namespace {

using testing::expect_throw_with;

at::Tensor rows(std::initializer_list<double> values, int64_t dim) {
  return at::tensor(std::vector<double>(values)).reshape({1, -1, dim});
}

at::Tensor indices(std::initializer_list<int64_t> values) {
  return at::tensor(std::vector<int64_t>(values)).reshape({1, -1});
}

TEST(CommitmentLossTest, IsTheMeanSquareOverUnmaskedTokens) {
  const auto x = rows({1, 2, 3, 4}, 2), codes = rows({1, 0, 0, 0}, 2);
  EXPECT_DOUBLE_EQ(ops::commitment_loss(x, codes).item<double>(), 29.0 / 4);
  const auto mask = at::tensor({1, 0}).to(at::kBool).reshape({1, 2});
  EXPECT_DOUBLE_EQ(ops::commitment_loss(x, codes, mask).item<double>(), 2.0);
  EXPECT_EQ(ops::commitment_loss(x, codes, at::zeros_like(mask)).item<double>(), 0.0);
}

TEST(CommitmentLossTest, ReachesBothSides) {
  const auto x = rows({1, 2}, 2).requires_grad_(), codes = rows({0, 0}, 2).requires_grad_();
  const auto grads = torch::autograd::grad({ops::commitment_loss(x, codes)}, {x, codes});
  EXPECT_TRUE(at::allclose(grads[0], rows({1, 2}, 2)));
  EXPECT_TRUE(at::allclose(grads[1], rows({-1, -2}, 2)));
}

TEST(CommitmentLossTest, NamesBadArguments) {
  expect_throw_with<c10::TypeError>(
      [] { ops::commitment_loss(at::zeros({1, 2, 3}), at::zeros({1, 2, 3}), at::zeros({1, 2})); },
      "commitment_loss: expected mask to be Bool");
}

TEST(CommitmentCrossEntropyTest, IsTheCrossEntropyOfDistances) {
  const auto codebook = rows({0, 3}, 1), x = rows({1, 7}, 1);
  const double expected = std::log(1 + std::exp(-1.0));
  EXPECT_NEAR(
      ops::commitment_cross_entropy(x, codebook, indices({0, -1}), "euclidean").item<double>(),
      expected, 1e-12);
}

TEST(CommitmentCrossEntropyTest, KeepsItsGradientWhenTheCodebookIsOverwritten) {
  const auto codebook = rows({0, 3}, 1), x = rows({1}, 1).requires_grad_();
  const auto loss = ops::commitment_cross_entropy(x, codebook, indices({0}), "euclidean");
  codebook.fill_(100);
  // Scores -|x| and -|x - 3|: their slopes are -1 and +1, p of the wrong code is 1 / (1 + e).
  const auto grad = torch::autograd::grad({loss}, {x})[0];
  EXPECT_NEAR(grad.item<double>(), 2 / (1 + std::exp(1.0)), 1e-12);
}

TEST(CommitmentCrossEntropyTest, NamesTargetsOutOfRange) {
  expect_throw_with<c10::IndexError>(
      [] {
        ops::commitment_cross_entropy(rows({1}, 1), rows({0, 3}, 1), indices({2}), "euclidean");
      },
      "commitment_cross_entropy: expected targets to be in [-1, 2), but got 2");
}

TEST(CodebookDiversityLossTest, IsMinusTheEntropyOfAverageUse) {
  const auto codebook = rows({0, 10}, 1);
  EXPECT_NEAR(
      ops::codebook_diversity_loss(rows({0, 10}, 1), codebook, 100, "euclidean").item<double>(),
      -std::log(2.0), 1e-12);
  EXPECT_NEAR(
      ops::codebook_diversity_loss(rows({0, 0}, 1), codebook, 100, "euclidean").item<double>(), 0,
      1e-12);
  EXPECT_NEAR(
      ops::codebook_diversity_loss(rows({0, 0}, 1), codebook, 0, "euclidean").item<double>(),
      -std::log(2.0), 1e-12);
}

/// Loss, gradients, tokens and codes of 9 tokens, one of them masked, and 13 codes: rows that end within a vector.
std::vector<at::Tensor> diversity_at(kernels::CpuLevel level, double temperature,
                                     at::ScalarType dtype = at::kDouble) {
  kernels::limit_cpu_level(level);
  const auto generator = at::detail::createCPUGenerator(5);
  const auto draw = [&](int64_t count) { return at::randn({1, count, 3}, generator, dtype); };
  const auto x = draw(9).requires_grad_(), codebook = draw(13).requires_grad_();
  auto mask = at::ones({1, 9}, at::kBool);
  mask[0][4].fill_(false);
  const auto loss = ops::codebook_diversity_loss(x, codebook, temperature, "euclidean", mask);
  auto grads = torch::autograd::grad({loss}, {x, codebook});
  kernels::limit_cpu_level(kernels::CpuLevel::kAmx);
  return {loss.detach(), grads[0], grads[1], x.detach(), codebook.detach()};
}

TEST(CodebookDiversityLossTest, HasTheSameBitsOnEveryInstructionSet) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const double temperature : {0.0, 1.0, 100.0}) {
      const auto plain = diversity_at(kernels::CpuLevel::kDefault, temperature, dtype);
      for (const auto level : {kernels::CpuLevel::kAvx2, kernels::CpuLevel::kAvx512}) {
        const auto other = diversity_at(level, temperature, dtype);
        for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], other[i])) << i;
      }
    }
  }
}

TEST(CodebookDiversityLossTest, IsTheEntropyOfTheMeanSoftmax) {
  const auto found = diversity_at(kernels::CpuLevel::kAmx, 2);
  const auto x = found[3].clone().requires_grad_(), codebook = found[4].clone().requires_grad_();
  const auto scores = (x.unsqueeze(2) - codebook.unsqueeze(1)).square().sum(-1).sqrt().neg();
  auto p = (scores * 2).softmax(-1)[0];
  p = at::cat({p.slice(0, 0, 4), p.slice(0, 5)}).mean(0);
  const auto loss = (p * p.log()).sum();
  const auto grads = torch::autograd::grad({loss}, {x, codebook});
  EXPECT_NEAR(found[0].item<double>(), loss.item<double>(), 1e-12);
  EXPECT_TRUE(at::allclose(found[1], grads[0], 1e-9, 1e-12));
  EXPECT_TRUE(at::allclose(found[2], grads[1], 1e-9, 1e-12));
}

TEST(CodebookDiversityLossTest, IsNanAfterAScoreThatIsNot) {
  const auto codebook = rows({0, 10, 20}, 1);
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    const auto loss = ops::codebook_diversity_loss(rows({0, bad}, 1), codebook, 1, "euclidean");
    EXPECT_TRUE(std::isnan(loss.item<double>()));
  }
}

TEST(OrthogonalLossTest, CountsPairsOfActiveCodes) {
  const auto codebook = rows({1, 0, 0, 2, 3, 0}, 2);
  // Cosines: codes 0 and 2 are parallel, 1 is orthogonal to both: (3 + 2) / 9 - 1 / 3.
  EXPECT_NEAR(ops::orthogonal_loss(codebook).item<double>(), 2.0 / 9, 1e-12);
  EXPECT_NEAR(ops::orthogonal_loss(codebook, indices({0, 1, 0, -1})).item<double>(), 0, 1e-12);
  EXPECT_NEAR(ops::orthogonal_loss(codebook, indices({0, 2})).item<double>(), 0.5, 1e-12);
}

TEST(OrthogonalLossTest, NeedsRandomStateForASubset) {
  expect_throw_with<c10::ValueError>(
      [] { ops::orthogonal_loss(at::ones({1, 3, 2}), std::nullopt, 2); },
      "orthogonal_loss: expected rng to be given with max_codes, but got None");
}

}  // namespace
}  // namespace torchvq::losses_test
