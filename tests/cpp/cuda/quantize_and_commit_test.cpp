// The gradient of quantize_and_commit for CUDA, emulated, against the CPU's: every bit.
#include <torchvq/ops/quantize_and_commit.h>

#include <gtest/gtest.h>

#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_quantize_and_commit_test {
namespace {

using testing_cuda::expect_cpu_bits;

/// Gradients of both results for tokens (B, N, D) and their codes (1, B N, D).
void expect_bits(at::IntArrayRef shape, at::ScalarType dtype) {
  const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto x = at::randn(shape).to(dtype), grad = at::randn(shape).to(dtype);
  const int64_t tokens = shape[0] * shape[1];
  const auto codes = at::randn({1, tokens, shape[2]}, wide);
  const auto commitment = at::randn({}, wide);
  const auto mask = at::rand({1, tokens}).lt(0.6);
  for (const bool rotates : {false, true}) {
    expect_cpu_bits(
        [&] { return ops::quantize_and_commit_backward(grad, commitment, x, codes, rotates); });
    expect_cpu_bits([&] {
      return ops::quantize_and_commit_backward(grad, commitment, x, codes, rotates, mask);
    });
  }
}

TEST(CudaQuantizeAndCommit, GradientOfEveryTypeAndShape) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t dim : {1, 8, 33}) expect_bits({2, 19, dim}, dtype);
    expect_bits({2, 0, 5}, dtype);
  }
}

TEST(CudaQuantizeAndCommit, GradientsInAnyLayout) {
  at::manual_seed(2);
  const auto x = at::randn({2, 7, 12}).transpose(1, 2),
             grad = at::randn({1, 1, 1}).expand({2, 12, 7});
  const auto codes = at::randn({1, 24, 7}), commitment = at::randn({});
  expect_cpu_bits([&] {
    return ops::quantize_and_commit_backward(grad, commitment, x, codes, /*rotates=*/true);
  });
}

}  // namespace
}  // namespace torchvq::cuda_quantize_and_commit_test
