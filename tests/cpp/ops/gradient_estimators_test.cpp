// The gradient estimators through their C++ functions: values, documented gradients, messages. The
// Python tests (tests/python/test_<op>.py) compare them with formulas, finite differences and the
// reference.
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/directional_reparam.h>
#include <torchvq/ops/gumbel_straight_through.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/quantize_and_commit.h>
#include <torchvq/ops/residual_commit.h>
#include <torchvq/ops/rotation_trick.h>
#include <torchvq/ops/sample_codes.h>
#include <torchvq/ops/snapshot.h>
#include <torchvq/ops/straight_through.h>
#include <torchvq/ops/sync_update_v.h>
#include <torchvq/ops/unit_vectors.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "expect_throw.h"
#include "kernels/cpu/cpu_level.h"
#include "kernels/cpu/lanes.h"

namespace torchvq::gradient_estimators_test {
namespace {

using testing::expect_throw_with;

at::Tensor tokens(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values)).reshape({1, -1, 2});
}

at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, const at::Tensor& upstream) {
  return torch::autograd::grad({output}, {input}, {upstream})[0];
}

TEST(LanesTest, SumsEveryTermOnceWhateverTheSize) {
  for (int64_t size = 0; size <= 40; ++size) {
    kernels::LaneSum sum;
    kernels::for_each_lane(
        size, [&](int64_t i, int64_t l) { sum.lane[l] += static_cast<double>(i + 1); });
    EXPECT_EQ(sum.total(), static_cast<double>(size * (size + 1) / 2));
  }
}

/// Everything that the kernels of kernels/cpu/token_rows.h give for the same tokens.
std::vector<at::Tensor> token_rows_at(kernels::CpuLevel level, int64_t dim, at::ScalarType dtype) {
  kernels::limit_cpu_level(level);
  at::manual_seed(dim);
  const auto x = at::randn({1, 40, dim}, dtype), codes = at::randn({1, 40, dim}, dtype);
  const auto grad = at::randn({1, 40, dim}, dtype), weight = at::full({}, 0.7, dtype);
  x.select(1, 3).zero_();  // straight-through
  x.select(1, 4).fill_(std::numeric_limits<double>::infinity());
  const auto indices = at::arange(80).reshape({1, 40, 2}).remainder(40);
  const auto stack = ops::residual_commit(x, {codes, codes.mul(0.3)}, indices);
  const auto real =
      ops::residual_commit(x, {codes}, indices.narrow(2, 0, 1), at::arange(40).ne(4).view({1, 40}));
  return {ops::rotation_trick_backward(grad, x, codes),
          ops::unit_vectors_backward(grad, x, ops::unit_vectors(x)),
          stack.quantized,
          stack.residuals,
          real.losses,
          ops::quantize_and_commit_backward(grad, weight, x, codes, /*rotates=*/true),
          ops::quantize_and_commit_backward(grad, weight, x, codes, /*rotates=*/false),
          ops::commitment_loss(x.narrow(1, 5, 35), codes.narrow(1, 5, 35), std::nullopt)};
}

TEST(TokenRowsTest, HaveTheSameBitsAtEveryLevel) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t dim : {1, 4, 7, 8, 16, 27, 64, 129}) {
      const auto plain = token_rows_at(kernels::CpuLevel::kDefault, dim, dtype);
      for (const auto level : {kernels::CpuLevel::kAvx2, kernels::CpuLevel::kAvx512}) {
        const auto other = token_rows_at(level, dim, dtype);
        for (size_t i = 0; i < plain.size(); ++i) {
          EXPECT_TRUE(at::allclose(plain[i], other[i], 0, 0, /*equal_nan=*/true))
              << dim << " " << i;
        }
      }
      kernels::limit_cpu_level(kernels::best_cpu_level());
    }
  }
}

TEST(StraightThroughTest, GivesTheCodesAndTheIdentityGradient) {
  const auto x = tokens({1, 2, 3, 4}).requires_grad_(), codes = tokens({5, 6, 7, 8});
  const auto y = ops::straight_through(x, codes);
  EXPECT_TRUE(at::equal(y, codes));
  EXPECT_TRUE(at::equal(gradient(y, x, codes), codes));
}

TEST(StraightThroughTest, NamesBadArguments) {
  expect_throw_with<c10::ValueError>(
      [] { ops::straight_through(at::zeros({1, 2, 3}), at::zeros({1, 2, 4})); },
      "straight_through: expected codes to have the shape of x");
  expect_throw_with<c10::TypeError>(
      [] { ops::straight_through(at::zeros({1, 2, 3}, at::kLong), at::zeros({1, 2, 3})); },
      "straight_through: expected x to be floating point");
}

TEST(RotationTrickTest, RotatesTheGradientByAQuarterTurn) {
  // x points along the first axis, its code is twice as long along the second: dy along the code
  // becomes twice dy along x, and dy along x becomes twice dy against the code.
  const auto x = tokens({1, 0, 1, 0}).requires_grad_(), codes = tokens({0, 2, 0, 2});
  const auto y = ops::rotation_trick(x, codes);
  EXPECT_TRUE(at::equal(y, codes));
  EXPECT_TRUE(at::allclose(gradient(y, x, tokens({0, 1, 1, 0})), tokens({2, 0, 0, -2})));
}

TEST(RotationTrickTest, FallsBackForAZeroToken) {
  const auto upstream = tokens({3, 4}), zero = tokens({0, 0});
  EXPECT_TRUE(at::equal(ops::rotation_trick_backward(upstream, zero, tokens({1, 0})), upstream));
  EXPECT_TRUE(at::equal(ops::rotation_trick_backward(upstream, tokens({1, 0}), zero), upstream));
}

TEST(DirectionalReparamTest, WithoutNoiseIsTheCodeWithGradientsThroughTheDistance) {
  const auto x = tokens({0, 0}).requires_grad_(), codes = tokens({3, 4}).requires_grad_();
  const auto y = ops::directional_reparam(x, codes, tokens({9, 9}), 0.0);
  EXPECT_TRUE(at::allclose(y, codes));
  const auto grads = torch::autograd::grad({y}, {x, codes}, {tokens({1, 0})});
  // u = (0.6, 0.8), t = 0.6, n = -u
  EXPECT_TRUE(at::allclose(grads[0], tokens({1 - 0.36, -0.48})));
  EXPECT_TRUE(at::allclose(grads[1], tokens({0.36, 0.48})));
}

TEST(DirectionalReparamTest, NamesABadVariance) {
  expect_throw_with<c10::ValueError>(
      [] { ops::directional_reparam(tokens({1, 2}), tokens({1, 2}), tokens({1, 2}), -1); },
      "directional_reparam: expected variance to be finite and non-negative, but got -1");
}

TEST(SyncUpdateVTest, ScalesTheGradient) {
  const auto x = tokens({1, 2}).requires_grad_();
  const auto y = ops::sync_update_v(x, 0.5);
  EXPECT_TRUE(at::equal(y, x));
  EXPECT_TRUE(at::equal(gradient(y, x, tokens({2, 4})), tokens({3, 6})));
}

TEST(SnapshotTest, IsACopyWithTheIdentityGradient) {
  const auto codebook = tokens({1, 2, 3, 4}).requires_grad_();
  const auto copy = ops::snapshot(codebook);
  EXPECT_NE(copy.data_ptr(), codebook.data_ptr());
  EXPECT_TRUE(at::equal(gradient(copy, codebook, tokens({1, 1, 1, 1})), tokens({1, 1, 1, 1})));
}

TEST(GumbelStraightThroughTest, LooksUpAndDifferentiatesTheSoftChoice) {
  const auto codebook = tokens({1, 0, -1, 0}), indices = at::zeros({1, 1}, at::kLong);
  const auto x = tokens({0, 0}).requires_grad_();
  const auto y = ops::gumbel_straight_through(x, codebook, indices, 1.0, "euclidean");
  EXPECT_TRUE(at::equal(y, tokens({1, 0})));
  // p = 1/2 each; moving x by h along the axis moves the scores by +h and -h, the average code by
  // h.
  EXPECT_TRUE(at::allclose(gradient(y, x, tokens({1, 0})), tokens({1, 0})));
}

TEST(GumbelStraightThroughTest, NamesABadMetric) {
  expect_throw_with<c10::ValueError>(
      [] {
        ops::gumbel_straight_through(tokens({1, 2}), tokens({1, 2}), at::zeros({1, 1}, at::kLong),
                                     1.0, "dot");
      },
      "gumbel_straight_through: expected metric to be 'euclidean' or 'cosine', but got 'dot'");
}

TEST(SampleCodesTest, DrawsWithTheStatedProbabilities) {
  const auto codebook = at::tensor({0.0, 1.0}).reshape({1, 2, 1});
  const auto rng = at::tensor({int64_t{7}, int64_t{3}});
  const auto indices = ops::sample_codes(at::zeros({1, 20000, 1}), codebook, rng, 1.0, "euclidean");
  const double share = indices.to(at::kDouble).mean().item<double>();
  const double expected = std::exp(-1.0) / (1 + std::exp(-1.0));
  EXPECT_NEAR(share, expected, 5 * std::sqrt(expected * (1 - expected) / 20000));
}

TEST(SampleCodesTest, TemperatureZeroTakesTheNearest) {
  const auto rng = at::zeros({2}, at::kLong);
  const auto codebook = tokens({5, 5, 1, 1, 0, 0});
  const auto indices =
      ops::sample_codes(tokens({1, 2, -3, 0, 9, 9}), codebook, rng, 0.0, "euclidean");
  EXPECT_TRUE(at::equal(indices, at::tensor({1, 2, 0}, at::kLong).reshape({1, 3})));
}

}  // namespace
}  // namespace torchvq::gradient_estimators_test
