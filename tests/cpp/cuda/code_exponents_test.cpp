// code_exponents for CUDA, emulated, against the CPU's.
#include <torchvq/ops/code_exponents.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_code_exponents_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

void expect_cpu_exponents(const at::Tensor& codebook) {
  const auto expected = ops::code_exponents(codebook);
  for (const auto order : {Order::kForward, Order::kShuffled})
    expect_same(emulated({.order = order}, [&] { return ops::code_exponents(codebook); }),
                expected);
}

TEST(CudaCodeExponents, EveryType) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    expect_cpu_exponents(at::randn({2, 37, 19}).to(dtype));
  expect_cpu_exponents(at::randn({3, 5, 8}).transpose(0, 1));
}

TEST(CudaCodeExponents, ScalesZerosAndNumbersThatAreNotFinite) {
  at::manual_seed(2);
  auto codebook = at::randn({3, 40, 5}, at::kDouble) *
                  at::pow(10, at::arange(-300, 300, 15).to(at::kDouble)).unsqueeze(-1);
  codebook[0][4].zero_();
  codebook[1][3][2] = std::numeric_limits<double>::quiet_NaN();
  codebook[1][8][0] = -std::numeric_limits<double>::infinity();
  codebook[2] = codebook[2] * 1e-10;
  expect_cpu_exponents(codebook);
  expect_cpu_exponents(codebook.to(at::kFloat));
  expect_cpu_exponents(at::zeros({2, 3, 4}));
}

}  // namespace
}  // namespace torchvq::cuda_code_exponents_test
