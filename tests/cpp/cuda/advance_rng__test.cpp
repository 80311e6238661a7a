// advance_rng_ for CUDA, emulated, against the CPU's.
#include <torchvq/ops/advance_rng_.h>

#include <optional>

#include <gtest/gtest.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_advance_rng_test {
namespace {

using testing_cuda::expect_cpu_bits;

void expect_cpu_step(const std::optional<at::Tensor>& mask) {
  expect_cpu_bits([&] {
    const auto rng = at::tensor({11, 4}, at::kLong);
    ops::advance_rng_(rng, mask);
    return rng;
  });
}

TEST(CudaAdvanceRng, OnlyWhereThereAreTokens) {
  expect_cpu_step(std::nullopt);
  for (const auto dtype : {at::kBool, at::kLong, at::kInt}) {
    for (const int64_t count : {1, 5, 3000}) {
      const auto mask = at::zeros({count}, dtype);
      expect_cpu_step(mask);
      mask[count - 1] = 1;
      expect_cpu_step(mask);
    }
    expect_cpu_step(at::zeros({2, 0}, dtype));
    expect_cpu_step(at::zeros({2, 6}, dtype).t());
  }
}

}  // namespace
}  // namespace torchvq::cuda_advance_rng_test
