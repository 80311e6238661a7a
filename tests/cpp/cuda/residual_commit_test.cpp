// residual_commit for CUDA, emulated, against the CPU's: every bit.
#include <torchvq/ops/residual_commit.h>

#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_residual_commit_test {
namespace {

using testing_cuda::emulated;
using testing_cuda::expect_same;
using testing_cuda::kOrders;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Walk {
  at::Tensor x, indices;
  std::vector<at::Tensor> codebooks;
  std::optional<at::Tensor> mask = std::nullopt;

  Walk(int64_t heads, int64_t tokens, int64_t dim, int64_t levels,
       at::ScalarType dtype = at::kFloat)
      : x(at::randn({heads, tokens, dim}).to(dtype)),
        indices(at::randint(0, 7, {heads, tokens, levels}, at::kLong)) {
    for (int64_t level = 0; level < levels; ++level)
      codebooks.push_back(at::randn({heads, 7 + level, dim}).to(dtype));
  }

  ops::ResidualCommitOutput commit() const {
    return ops::residual_commit(x, codebooks, indices, mask);
  }

  void expect_bits() const {
    const auto expected = commit();
    const auto grads = at::randn(expected.losses.sizes(), expected.losses.options());
    const auto other = at::randn(expected.quantized.sizes(), expected.quantized.options());
    const auto gradient = [&](const std::optional<at::Tensor>& added) {
      return ops::residual_commit_backward(grads, expected.residuals, mask, 3, added);
    };
    const auto alone = gradient(std::nullopt), both = gradient(other);
    for (const auto order : kOrders) {
      const auto actual = emulated({.order = order}, [&] { return commit(); });
      expect_same(actual.quantized, expected.quantized);
      expect_same(actual.losses, expected.losses);
      expect_same(actual.residuals, expected.residuals);
      expect_same(emulated({.order = order}, [&] { return gradient(std::nullopt); }), alone);
      expect_same(emulated({.order = order}, [&] { return gradient(other); }), both);
    }
  }
  void expect_cpu_bits() {
    mask.reset();
    expect_bits();
    const auto rows = x.sizes().slice(0, 2);
    mask = at::rand(rows).lt(0.6);
    expect_bits();
    mask = at::zeros(rows, at::kBool);
    expect_bits();
  }
};

TEST(CudaResidualCommit, EveryTypeAndShape) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t dim : {1, 3, 8, 33, 257}) Walk(2, 19, dim, 3, dtype).expect_cpu_bits();
    Walk(1, 1, 5, 1, dtype).expect_cpu_bits();
    Walk(2, 0, 5, 2, dtype).expect_cpu_bits();
    Walk(0, 3, 5, 2, dtype).expect_cpu_bits();
  }
}

TEST(CudaResidualCommit, ManyTermsOfASum) {
  at::manual_seed(5);
  // Terms of 8192 / (dim + 1) + 1 rows; in float64, whose sums depend on the order of additions.
  for (const auto& [tokens, dim] :
       {std::pair{4500, 1}, {1400, 8}, {1000, 9}, {550, 1000}, {3, 9000}}) {
    Walk(2, tokens, dim, 2, at::kDouble).expect_cpu_bits();
  }
}

TEST(CudaResidualCommit, HeadsShareCodebooksAndOtherStrides) {
  at::manual_seed(2);
  Walk walk(3, 21, 12, 3);
  walk.codebooks[0] = walk.codebooks[0][1];
  walk.codebooks[2] = walk.codebooks[2].narrow(0, 1, 1);
  walk.expect_cpu_bits();
  walk.x = at::randn({12, 21, 3}).permute({2, 1, 0});
  walk.indices = walk.indices.transpose(1, 2).contiguous().transpose(1, 2);
  walk.codebooks[1] = at::randn({3, 12, 8}, at::kDouble).transpose(1, 2);
  walk.expect_cpu_bits();
}

TEST(CudaResidualCommit, NotFiniteFromAnyLevelOn) {
  at::manual_seed(3);
  for (const int64_t dim : {6, 40}) {
    for (const int64_t levels : {3, 40}) {
      Walk walk(1, 12, dim, levels);
      walk.x[0][1][dim - 1] = kNan;
      walk.x[0][2][0] = -kInfinity;
      walk.codebooks[1][0][2][dim / 2] = kNan;
      walk.codebooks[levels - 1][0][3][0] = kInfinity;
      walk.indices[0][5][1] = 2;
      walk.indices[0][6][levels - 1] = 3;
      // The residual of the first level overflows float32.
      walk.x[0][7].fill_(3e38);
      walk.codebooks[0][0][1].fill_(-3e38);
      walk.indices[0][7][0] = 1;
      walk.expect_cpu_bits();
    }
  }
}

TEST(CudaResidualCommit, MoreLevelsThanALaunchTakes) {
  at::manual_seed(4);
  for (const int64_t levels : {31, 32, 33, 70}) Walk(2, 5, 4, levels).expect_cpu_bits();
}

TEST(CudaResidualCommit, IndexThatIsNoCode) {
  Walk walk(1, 4, 3, 2);
  for (const int64_t wrong : {-1, 8}) {
    walk.indices[0][2][1] = wrong;
    EXPECT_THROW(emulated({}, [&] { return walk.commit(); }), c10::Error);
  }
}

TEST(CudaResidualCommit, LaunchesDoNotGrowWithLevels) {
  Walk walk(3, 5, 4, 32);
  const auto grads = at::randn({32}), residuals = walk.commit().residuals;
  const auto launches_of = [&](const auto& call) {
    const auto before = cuda_shim::launches();
    emulated({}, call);
    return cuda_shim::launches() - before;
  };
  const auto backward = [&] { return ops::residual_commit_backward(grads, residuals, walk.mask); };
  EXPECT_EQ(launches_of([&] { return walk.commit(); }), 3);
  EXPECT_EQ(launches_of(backward), 1);
  walk.mask = at::rand({3, 5}).lt(0.5);
  EXPECT_EQ(launches_of([&] { return walk.commit(); }), 3);
  EXPECT_EQ(launches_of(backward), 2) << "the rows are counted first";
}

TEST(CudaResidualCommit, OldCardsTakeThePlainPath) {
  const Walk walk(2, 5, 4, 2);
  const auto call = [&] { return walk.commit(); };
  const auto expected = call();
  const auto before = cuda_shim::launches();
  const auto actual = emulated({.capability = 7}, call);
  EXPECT_EQ(cuda_shim::launches(), before);
  expect_same(actual.residuals, expected.residuals);
  expect_same(actual.quantized, expected.quantized);
}

}  // namespace
}  // namespace torchvq::cuda_residual_commit_test
