// residual_beam_search for CUDA, emulated, against the CPU's: every index.
#include <torchvq/ops/residual_beam_search.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"
#include "kernels/cuda/best_scores.h"

namespace torchvq::cuda_residual_beam_search_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Stack {
  at::Tensor x;
  std::vector<at::Tensor> codebooks;
  ops::ResidualBeamSearchOptions options;

  Stack(int64_t heads, int64_t tokens, int64_t dim, std::vector<int64_t> sizes,
        at::ScalarType dtype = at::kFloat)
      : x(at::randn({heads, tokens, dim}).to(dtype)) {
    for (const auto size : sizes) codebooks.push_back(at::randn({heads, size, dim}).to(dtype));
  }

  at::Tensor indices(int64_t beam) const {
    return ops::residual_beam_search(x, codebooks, beam, options);
  }
  void expect_cpu_indices(int64_t beam) const {
    const auto expected = indices(beam);
    for (const auto order : {Order::kForward, Order::kShuffled}) {
      const auto before = cuda_shim::launches();
      expect_same(emulated({.order = order}, [&] { return indices(beam); }), expected);
      if (x.numel() > 0) EXPECT_GT(cuda_shim::launches(), before);
    }
  }
};

TEST(CudaResidualBeamSearch, TypesBeamsAndWidths) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t beam : {1, 3, 30}) {
      for (const int64_t dim : {1, 24}) {
        Stack(2, 5, dim, {20, 7, 1, 12}, dtype).expect_cpu_indices(beam);
      }
    }
  }
  Stack(1, 5, 512, {30, 30}).expect_cpu_indices(4);
  Stack(1, 2, 8, {600, 300, 300}).expect_cpu_indices(6);
}

TEST(CudaResidualBeamSearch, TiesByIndex) {
  at::manual_seed(2);
  Stack stack(1, 12, 3, {16, 16, 16});
  stack.x = at::randint(-2, 3, {1, 12, 3}).to(at::kFloat);
  for (auto& codes : stack.codebooks) codes = at::randint(-1, 2, {1, 16, 3}).to(at::kFloat);
  for (const int64_t beam : {2, 5, 16}) stack.expect_cpu_indices(beam);
  for (auto& codes : stack.codebooks) codes = at::zeros({1, 16, 3});
  for (const int64_t beam : {2, 7}) stack.expect_cpu_indices(beam);
}

/// Rows far from the origin, and codes whose scores differ in the last places.
Stack crowded(at::ScalarType dtype) {
  Stack stack(1, 10, 16, {24, 24, 24}, dtype);
  stack.x = (at::randn({1, 10, 16}) + 3000).to(dtype);
  const double apart = dtype == at::kDouble ? 1e-9 : 1e-3;
  stack.codebooks[0] = at::randn({1, 24, 16}).to(dtype) * apart + 3000;
  stack.codebooks[1] = (at::randn({1, 24, 16}) * 1e-7 + 1).to(dtype);
  return stack;
}

TEST(CudaResidualBeamSearch, ScoresThatAProductCannotTell) {
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t beam : {2, 6}) crowded(dtype).expect_cpu_indices(beam);
  }
}

TEST(CudaResidualBeamSearch, TestsNoticeScreeningThatIsTrusted) {
  at::manual_seed(3);
  const auto stack = crowded(at::kDouble);
  const int fault =
      static_cast<int>(kernels::TORCHVQ_CUDA_NAMESPACE::BestScoresFault::kTrustScreening);
  const auto wrong = emulated({.fault = fault}, [&] { return stack.indices(2); });
  EXPECT_FALSE(at::equal(wrong, stack.indices(2)));
}

TEST(CudaResidualBeamSearch, WhatIsNotFinite) {
  at::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    Stack stack(2, 6, 4, {9, 5, 6}, dtype);
    stack.x[0][3][1] = kNaN, stack.x[1][4] = kInfinity;
    stack.codebooks[0][0][2][1] = kNaN;
    stack.codebooks[1][1].fill_(kNaN);
    stack.codebooks[2][0].slice(0, 1).fill_(kInfinity);
    for (const int64_t beam : {1, 2, 30}) stack.expect_cpu_indices(beam);
    stack.x.mul_(dtype == at::kDouble ? 1e160 : 1e30);
    for (const int64_t beam : {2, 4}) stack.expect_cpu_indices(beam);
  }
}

TEST(CudaResidualBeamSearch, WeightsMasksDepths) {
  at::manual_seed(5);
  Stack stack(2, 7, 6, {10, 8, 9});
  for (const std::vector<double>& weights :
       {std::vector<double>{1, 1, 1}, {0.5, 2, 1}, {1, 0, 3}, {0, 0, 0}}) {
    stack.options = ops::ResidualBeamSearchOptions().weights(weights);
    for (const int64_t beam : {1, 3}) stack.expect_cpu_indices(beam);
  }
  stack.options = ops::ResidualBeamSearchOptions().mask(at::rand({2, 7}).lt(0.6));
  stack.expect_cpu_indices(3);
  stack.options = ops::ResidualBeamSearchOptions().depth(at::scalar_tensor(2, at::kLong));
  stack.expect_cpu_indices(3);
}

TEST(CudaResidualBeamSearch, NoTokensAndStrides) {
  at::manual_seed(6);
  Stack(2, 0, 4, {5, 5}).expect_cpu_indices(3);
  Stack stack(2, 14, 6, {10, 8});
  stack.x = at::randn({6, 14, 2}).permute({2, 1, 0});
  stack.codebooks[1] = at::randn({6, 8, 2}).permute({2, 1, 0});
  stack.expect_cpu_indices(3);
}

}  // namespace
}  // namespace torchvq::cuda_residual_beam_search_test
