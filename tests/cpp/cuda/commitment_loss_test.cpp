// Commitment losses and their gradient for CUDA, emulated, against the CPU's: every bit.
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/residual_commitment_loss.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_commitment_loss_test {
namespace {

using cuda_shim::Order;
using testing_cuda::emulated;
using testing_cuda::expect_same;

constexpr Order kOrders[] = {Order::kForward, Order::kBackward, Order::kShuffled};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename Call>
void expect_cpu_bits(const Call& call) {
  const auto expected = call();
  for (const auto order : kOrders) expect_same(emulated({.order = order}, call), expected);
}

/// Inputs and chosen codes of levels, whose values differ in magnitude.
struct Levels {
  std::vector<at::Tensor> inputs, codes;
  std::optional<at::Tensor> mask;

  Levels(int64_t heads, int64_t tokens, int64_t dim, int64_t levels,
         at::ScalarType dtype = at::kFloat, at::ScalarType other = at::kFloat) {
    for (int64_t level = 0; level < levels; ++level) {
      inputs.push_back((at::randn({heads, tokens, dim}) * (1 + level)).to(dtype));
      codes.push_back((at::randn({heads, tokens, dim}) * (1 + level)).to(other));
    }
  }

  void expect_bits() const {
    const auto losses = ops::residual_commitment_loss(inputs[0], inputs, codes, mask);
    const auto grads = at::randn(losses.sizes(), losses.options());
    expect_cpu_bits([&] { return ops::residual_commitment_loss(inputs[0], inputs, codes, mask); });
    expect_cpu_bits(
        [&] { return ops::residual_commitment_loss_backward(grads, inputs, codes, mask); });
    expect_cpu_bits([&] { return ops::commitment_loss(inputs[0], codes[0], mask); });
  }
  void expect_bits_with_masks() {
    expect_bits();
    const auto tokens = inputs[0].sizes().slice(0, 2);
    mask = at::rand(tokens).lt(0.6);
    expect_bits();
    mask = at::zeros(tokens, at::kBool);
    expect_bits();
    mask.reset();
  }
};

TEST(CudaCommitmentLoss, EveryTypeAndShape) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t dim : {1, 3, 8, 33, 257}) {
      Levels(2, 19, dim, 3, dtype, dtype).expect_bits_with_masks();
    }
    Levels(1, 1, 5, 1, dtype).expect_bits_with_masks();
    Levels(2, 0, 5, 2, dtype).expect_bits_with_masks();
    Levels(2, 7, 0, 2, dtype).expect_bits_with_masks();
  }
  Levels(2, 19, 6, 2, at::kFloat, at::kDouble).expect_bits_with_masks();
}

TEST(CudaCommitmentLoss, ManyTermsOfASum) {
  at::manual_seed(2);
  // Terms of 8192 / (dim + 1) + 1 rows; in float64, whose sums depend on the order of additions.
  for (const auto& [tokens, dim] :
       {std::pair{9000, 1}, {2731, 8}, {2000, 9}, {1100, 1000}, {3, 9000}}) {
    Levels(1, tokens, dim, 2, at::kDouble, at::kDouble).expect_bits_with_masks();
  }
  // More terms than shared memory holds at a time.
  const Levels levels(1, 1030 * 4097, 1, 1, at::kDouble, at::kDouble);
  const auto loss = [&] { return ops::commitment_loss(levels.inputs[0], levels.codes[0]); };
  expect_same(emulated({}, loss), loss());
}

TEST(CudaCommitmentLoss, NotFinite) {
  at::manual_seed(3);
  for (const int64_t dim : {8, 13}) {
    Levels levels(1, 30, dim, 3);
    levels.inputs[1][0][3][2] = kNan;
    levels.codes[2][0][4][0] = kInfinity;
    levels.expect_bits_with_masks();
    // Padding may hold anything; a sum beyond float32 is infinite.
    levels.inputs[0][0][5].fill_(kNan);
    levels.inputs[0][0][6].fill_(3e38);
    levels.mask = at::zeros({1, 30}, at::kBool);
    levels.mask->slice(1, 6).fill_(true);
    levels.expect_bits();
  }
}

TEST(CudaCommitmentLoss, OtherStrides) {
  at::manual_seed(4);
  Levels levels(2, 19, 6, 2);
  levels.inputs[0] = at::randn({6, 19, 2}).permute({2, 1, 0});
  levels.codes[1] = at::randn({19, 2, 6}).transpose(0, 1);
  levels.mask = at::rand({19, 2}).lt(0.5).t();
  levels.expect_bits();
}

TEST(CudaCommitmentLoss, MoreLevelsThanALaunchTakes) {
  at::manual_seed(5);
  for (const int64_t levels : {32, 33, 70}) Levels(2, 5, 4, levels).expect_bits_with_masks();
}

TEST(CudaCommitmentLoss, LaunchesDoNotGrowWithLevels) {
  Levels levels(2, 5, 4, 32);
  const auto grads = at::randn({32});
  const auto launches_of = [&](const auto& call) {
    const auto before = cuda_shim::launches();
    emulated({}, call);
    return cuda_shim::launches() - before;
  };
  const auto forward = [&] {
    return ops::residual_commitment_loss(levels.inputs[0], levels.inputs, levels.codes,
                                         levels.mask);
  };
  const auto backward = [&] {
    return ops::residual_commitment_loss_backward(grads, levels.inputs, levels.codes, levels.mask);
  };
  EXPECT_EQ(launches_of(forward), 2);
  EXPECT_EQ(launches_of(backward), 1);
  levels.mask = at::rand({2, 5}).lt(0.5);
  EXPECT_EQ(launches_of(forward), 2);
  EXPECT_EQ(launches_of(backward), 2) << "the rows are counted first";
}

}  // namespace
}  // namespace torchvq::cuda_commitment_loss_test
