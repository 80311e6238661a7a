// lookup_codes, unit_vectors and the gradient of the rotation trick for CUDA, emulated, against the
// CPU's: every bit.
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/rotation_trick.h>
#include <torchvq/ops/unit_vectors.h>

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "cuda/emulated.h"

namespace torchvq::cuda_lookup_codes_test {
namespace {

using testing_cuda::emulated;
using testing_cuda::expect_cpu_bits;
using testing_cuda::expect_same;

constexpr auto kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kNaN = std::numeric_limits<double>::quiet_NaN();

void expect_same_rows(const at::Tensor& codebook, const at::Tensor& indices) {
  // Compared as float64, which holds every value of the others: torch cannot compare 8-bit floats.
  expect_cpu_bits([&] { return ops::lookup_codes(codebook, indices).to(at::kDouble); });
}

TEST(CudaLookupCodes, EveryTypeAndWidth) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn}) {
    for (const int64_t dim : {1, 3, 4, 33, 256}) {
      expect_same_rows(at::randn({2, 7, dim}).to(dtype), at::randint(-1, 7, {2, 40}, at::kLong));
    }
  }
}

TEST(CudaLookupCodes, RowsThatAreNotAligned) {
  at::manual_seed(2);
  // Contiguous, but one element after the start of its memory, so not aligned.
  constexpr int64_t kNumbers = 2 * 5 * 8;
  const auto codebook = at::randn({kNumbers + 1}).narrow(0, 1, kNumbers).view({2, 5, 8});
  expect_same_rows(codebook, at::randint(-1, 5, {2, 30}, at::kLong));
  const auto halves = codebook.to(at::kHalf).flatten();
  expect_same_rows(halves.narrow(0, 1, 72).view({1, 9, 8}), at::randint(-1, 9, {1, 20}, at::kLong));
}

TEST(CudaLookupCodes, NoTokensAndOtherStrides) {
  at::manual_seed(3);
  expect_same_rows(at::randn({2, 3, 4}), at::zeros({2, 0}, at::kLong));
  expect_same_rows(at::randn({4, 3, 2}).permute({2, 1, 0}),
                   at::randint(-1, 3, {50, 2}, at::kLong).t());
}

TEST(CudaLookupCodes, IndexThatIsNoCode) {
  const auto codebook = at::randn({1, 3, 2});
  for (const int64_t wrong : {3, -2}) {
    const auto indices = at::zeros({1, 4}, at::kLong).fill_(wrong);
    EXPECT_THROW(emulated({}, [&] { return ops::lookup_codes(codebook, indices); }), c10::Error);
  }
}

TEST(CudaLookupCodes, OneLaunch) {
  const auto codebook = at::randn({2, 3, 4});
  const auto indices = at::zeros({2, 5}, at::kLong);
  const auto before = cuda_shim::launches();
  emulated({}, [&] { return ops::lookup_codes(codebook, indices); });
  EXPECT_EQ(cuda_shim::launches() - before, 1);
}

/// Tokens and codes with every special case of the formula.
struct Rotation {
  at::Tensor grad, x, codes;

  Rotation(int64_t heads, int64_t tokens, int64_t dim, at::ScalarType dtype, at::ScalarType other)
      : grad(at::randn({heads, tokens, dim}).to(dtype)),
        x(at::randn({heads, tokens, dim}).to(dtype)),
        codes(at::randn({heads, tokens, dim}).to(other)) {}

  void expect_bits() const {
    expect_cpu_bits([&] { return ops::rotation_trick_backward(grad, x, codes); });
  }
};

TEST(CudaRotationTrick, EveryTypeAndShape) {
  at::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    Rotation(1, 70, 33, dtype, dtype).expect_bits();
    Rotation(3, 5, 64, dtype, at::kFloat).expect_bits();
    Rotation(1, 9, 1, dtype, dtype).expect_bits();
    Rotation(2, 0, 4, dtype, dtype).expect_bits();
  }
  Rotation(2, 6, 7, at::kFloat, at::kDouble).expect_bits();
}

TEST(CudaRotationTrick, RowsWithoutARotation) {
  at::manual_seed(5);
  Rotation rows(1, 8, 20, at::kFloat, at::kFloat);
  rows.x[0][0].zero_();
  rows.codes[0][1].zero_();
  rows.codes[0][2] = -rows.x[0][2];
  rows.codes[0][3] = rows.x[0][3];
  rows.x[0][4].mul_(1e-9);
  rows.x[0][5][3] = kInfinity;
  rows.codes[0][6][0] = kNaN;
  rows.expect_bits();
}

/// The units of rows, and their gradient.
void expect_unit_bits(const at::Tensor& x) {
  expect_cpu_bits([&] { return ops::unit_vectors(x); });
  const auto units = ops::unit_vectors(x), grad = at::randn(units.sizes(), units.options());
  expect_cpu_bits([&] { return ops::unit_vectors_backward(grad, x, units); });
}

TEST(CudaUnitVectors, EveryTypeAndShape) {
  at::manual_seed(6);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t dim : {1, 5, 32, 33, 100}) {
      auto x = at::randn({2, 37, dim}).to(dtype);
      x[0][3].zero_();
      expect_unit_bits(x);
    }
  }
}

TEST(CudaUnitVectors, RowsThatAreNotFinite) {
  at::manual_seed(7);
  auto x = at::randn({40, 12});
  x[1][3] = kInfinity;
  x[35][0] = kNaN;
  x[36].mul_(1e-30);
  expect_unit_bits(x);
  expect_unit_bits(x.t());
  expect_unit_bits(at::zeros({0, 3}));
  expect_unit_bits(at::zeros({3, 0}));
  // Orthogonal to the gradient: nothing is subtracted, not even zeros times an infinity.
  const auto ones = at::ones({3, 2});
  const auto apart = at::tensor({1.0F, -1.0F}).expand({3, 2}).contiguous();
  expect_cpu_bits([&] { return ops::unit_vectors_backward(apart, ones, ops::unit_vectors(ones)); });
}

}  // namespace
}  // namespace torchvq::cuda_lookup_codes_test
