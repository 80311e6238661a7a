// count_codes_ for CUDA, emulated, against the CPU's.
#include <torchvq/ops/count_codes_.h>

#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_count_codes_test {
namespace {

using testing_cuda::emulated;
using testing_cuda::expect_same;
using testing_cuda::kOrders;

/// Levels of different sizes; previous counts are overwritten.
std::vector<at::Tensor> counts_of(int64_t heads, int64_t levels) {
  std::vector<at::Tensor> counts;
  for (int64_t level = 0; level < levels; ++level)
    counts.push_back(at::full({heads, 5 + level % 3 * 300}, 7, at::kLong));
  return counts;
}

std::vector<at::Tensor> indices_of(int64_t heads, int64_t levels, int64_t tokens) {
  std::vector<at::Tensor> indices;
  for (int64_t level = 0; level < levels; ++level)
    indices.push_back(at::randint(-1, 5, {heads, tokens + level}, at::kLong));
  return indices;
}

void expect_cpu_counts(int64_t heads, int64_t levels, const std::vector<at::Tensor>& indices) {
  const auto expected = counts_of(heads, levels);
  ops::count_codes_(expected, indices);
  for (const auto order : kOrders) {
    const auto actual = counts_of(heads, levels);
    emulated({.order = order}, [&] {
      ops::count_codes_(actual, indices);
      return 0;
    });
    for (size_t level = 0; level < expected.size(); ++level)
      expect_same(actual[level], expected[level]);
  }
}

TEST(CudaCountCodes, LevelsAndHeads) {
  at::manual_seed(1);
  expect_cpu_counts(1, 1, indices_of(1, 1, 1));
  expect_cpu_counts(2, 3, indices_of(2, 3, 700));
  expect_cpu_counts(2, 4, indices_of(2, 2, 9));
  expect_cpu_counts(2, 3, {});
  expect_cpu_counts(1, 2, {at::zeros({1, 0}, at::kLong), at::full({1, 5}, -1, at::kLong)});
  expect_cpu_counts(0, 2, indices_of(0, 2, 3));
  expect_cpu_counts(1, 0, {});
}

TEST(CudaCountCodes, OtherStrides) {
  at::manual_seed(2);
  expect_cpu_counts(2, 1, {at::randint(-1, 5, {30, 2}, at::kLong).t()});
}

TEST(CudaCountCodes, MoreLevelsThanALaunchTakes) {
  at::manual_seed(3);
  for (const int64_t levels : {32, 33, 70}) expect_cpu_counts(1, levels, indices_of(1, levels, 3));
}

TEST(CudaCountCodes, IndexThatIsNoCode) {
  for (const int64_t wrong : {-2, 5}) {
    const auto counts = counts_of(1, 1);
    const std::vector<at::Tensor> indices = {at::full({1, 4}, wrong, at::kLong)};
    const auto call = [&] {
      ops::count_codes_(counts, indices);
      return 0;
    };
    EXPECT_THROW(emulated({}, call), c10::Error);
  }
}

TEST(CudaCountCodes, LaunchesDoNotGrowWithLevels) {
  const auto counts = counts_of(2, 32);
  const auto indices = indices_of(2, 32, 20);
  const auto before = cuda_shim::launches();
  emulated({}, [&] {
    ops::count_codes_(counts, indices);
    return 0;
  });
  EXPECT_EQ(cuda_shim::launches() - before, 2);
}

}  // namespace
}  // namespace torchvq::cuda_count_codes_test
