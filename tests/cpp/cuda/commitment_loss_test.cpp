// Commitment losses and their gradient for CUDA, emulated, against the CPU's: every bit.
#include <torchvq/ops/commitment_loss.h>

#include <limits>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_commitment_loss_test {
namespace {

using testing_cuda::emulated;
using testing_cuda::expect_cpu_bits;
using testing_cuda::expect_same;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Tokens and chosen codes, whose values differ in magnitude.
struct Compared {
  at::Tensor x, codes;
  std::optional<at::Tensor> mask = std::nullopt;

  Compared(int64_t heads, int64_t tokens, int64_t dim, at::ScalarType dtype = at::kFloat,
           at::ScalarType other = at::kFloat)
      : x(at::randn({heads, tokens, dim}).to(dtype)),
        codes((at::randn({heads, tokens, dim}) * 3).to(other)) {}

  void expect_bits() const {
    const auto loss = ops::commitment_loss(x, codes, mask);
    const auto grad = at::randn({}, loss.options());
    expect_cpu_bits([&] { return ops::commitment_loss(x, codes, mask); });
    expect_cpu_bits([&] { return ops::commitment_loss_backward(grad, x, codes, mask); });
  }
  void expect_bits_with_masks() {
    expect_bits();
    const auto tokens = x.sizes().slice(0, 2);
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
      Compared(2, 19, dim, dtype, dtype).expect_bits_with_masks();
    }
    Compared(1, 1, 5, dtype).expect_bits_with_masks();
    Compared(2, 0, 5, dtype).expect_bits_with_masks();
    Compared(2, 7, 0, dtype).expect_bits_with_masks();
  }
  Compared(2, 19, 6, at::kFloat, at::kDouble).expect_bits_with_masks();
}

TEST(CudaCommitmentLoss, ManyTermsOfASum) {
  at::manual_seed(2);
  // Terms of 8192 / (dim + 1) + 1 rows; in float64, whose sums depend on the order of additions.
  for (const auto& [tokens, dim] :
       {std::pair{9000, 1}, {2731, 8}, {2000, 9}, {1100, 1000}, {3, 9000}}) {
    Compared(1, tokens, dim, at::kDouble, at::kDouble).expect_bits_with_masks();
  }
  // More terms than shared memory holds at a time.
  const Compared rows(1, int64_t{1030} * 4097, 1, at::kDouble, at::kDouble);
  const auto loss = [&] { return ops::commitment_loss(rows.x, rows.codes); };
  expect_same(emulated({}, loss), loss());
}

TEST(CudaCommitmentLoss, NotFinite) {
  at::manual_seed(3);
  for (const int64_t dim : {8, 13}) {
    for (const float lost : {kNan, kInfinity}) {
      Compared rows(1, 30, dim);
      rows.x[0][3][2] = lost;
      rows.expect_bits_with_masks();
      // Padding may hold anything; a sum beyond float32 is infinite.
      rows.x[0][5].fill_(kNan);
      rows.x[0][6].fill_(3e38);
      rows.mask = at::zeros({1, 30}, at::kBool);
      rows.mask->slice(1, 6).fill_(true);
      rows.expect_bits();
    }
    Compared rows(1, 30, dim);
    rows.codes[0][4][0] = kInfinity;
    rows.expect_bits_with_masks();
  }
}

TEST(CudaCommitmentLoss, OtherStrides) {
  at::manual_seed(4);
  Compared rows(2, 19, 6);
  rows.x = at::randn({6, 19, 2}).permute({2, 1, 0});
  rows.codes = at::randn({19, 2, 6}).transpose(0, 1);
  rows.mask = at::rand({19, 2}).lt(0.5).t();
  rows.expect_bits();
}

TEST(CudaCommitmentLoss, Launches) {
  Compared rows(2, 5, 4);
  const auto grad = at::randn({});
  const auto launches_of = [&](const auto& call) {
    const auto before = cuda_shim::launches();
    emulated({}, call);
    return cuda_shim::launches() - before;
  };
  const auto forward = [&] { return ops::commitment_loss(rows.x, rows.codes, rows.mask); };
  const auto backward = [&] {
    return ops::commitment_loss_backward(grad, rows.x, rows.codes, rows.mask);
  };
  EXPECT_EQ(launches_of(forward), 2);
  EXPECT_EQ(launches_of(backward), 1);
  rows.mask = at::rand({2, 5}).lt(0.5);
  EXPECT_EQ(launches_of(forward), 2);
  EXPECT_EQ(launches_of(backward), 2) << "the rows are counted first";
}

}  // namespace
}  // namespace torchvq::cuda_commitment_loss_test
