#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torchvq/io/array_source.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/safetensors.h>

#include <cmath>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io::array_source_test {
namespace {

using torchvq::testing::expect_throw_with;
using torchvq::testing::read_bytes;
using torchvq::testing::TempDir;
using torchvq::testing::write_bytes;

at::Tensor matrix(at::ScalarType dtype = at::kFloat) {
  return at::arange(20, at::kFloat).view({5, 4}).to(dtype);
}

template <typename Source>
void expect_blocks(const Source& source, const at::Tensor& whole) {
  for (int64_t first = 0; first <= whole.size(0); ++first) {
    for (int64_t count = 0; count <= whole.size(0) - first; ++count) {
      EXPECT_TRUE(at::equal(source.read(first, count), whole.narrow(0, first, count)))
          << first << " " << count;
    }
  }
}

TEST(VectorSourceTest, ReadsBlocksOfEveryDtype) {
  const TempDir dir;
  for (const auto dtype : {at::kHalf, at::kFloat, at::kDouble}) {
    save_npy(dir / "x.npy", matrix(dtype));
    expect_blocks(VectorSource(dir / "x.npy"), matrix());
  }
  save_safetensors(dir / "x.safetensors",
                   {{"odd", at::arange(1, at::kByte)}, {"x", matrix(at::kBFloat16)}});
  expect_blocks(VectorSource(dir / "x.safetensors", "x"), matrix());
  EXPECT_EQ(VectorSource(dir / "x.safetensors", "x").read(0, 1, at::kDouble).scalar_type(),
            at::kDouble);
}

// The bytes of a matrix in C order are those of its transpose in Fortran order.
TEST(VectorSourceTest, ReadsBlocksInFortranOrder) {
  const TempDir dir;
  save_npy(dir / "x.npy", matrix().t());
  auto bytes = read_bytes(dir / "x.npy");
  // matrix().t() is written in C order: 4 x 5, so its Fortran reading is 5 x 4.
  bytes.replace(bytes.find("False"), 5, "True ").replace(bytes.find("(4, 5)"), 6, "(5, 4)");
  write_bytes(dir / "x.npy", bytes);
  const VectorSource source(dir / "x.npy");
  EXPECT_TRUE(source.array().fortran_order());
  expect_blocks(source, matrix());
}

// Axes of size 1 do not order elements: numpy writes this for x (1, D, T) transposed to (1, T, D).
TEST(VectorSourceTest, ReadsFortranOrderOfOneLeadingAxis) {
  const TempDir dir;
  save_npy(dir / "x.npy", matrix().t());
  auto bytes = read_bytes(dir / "x.npy");
  bytes.replace(bytes.find("False"), 5, "True ")
      .replace(bytes.find("(4, 5), }   "), 12, "(1, 5, 4), }");
  write_bytes(dir / "x.npy", bytes);
  const VectorSource source(dir / "x.npy");
  EXPECT_EQ(source.array().shape(), (std::vector<int64_t>{1, 5, 4}));
  expect_blocks(source, matrix());
}

TEST(VectorSourceTest, LeadingAxesAreRows) {
  const TempDir dir;
  save_npy(dir / "x.npy", matrix().view({5, 2, 2}));
  const VectorSource source(dir / "x.npy");
  EXPECT_EQ(source.rows(), 10);
  EXPECT_EQ(source.dim(), 2);
  expect_blocks(source, matrix().view({10, 2}));
}

TEST(VectorSourceTest, NamesTheRowThatIsNotFinite) {
  const TempDir dir;
  for (const auto bad : {NAN, INFINITY, -INFINITY}) {
    auto x = matrix();
    x[3][2] = bad;
    save_npy(dir / "x.npy", x);
    const VectorSource source(dir / "x.npy");
    EXPECT_TRUE(at::equal(source.read(0, 3), x.narrow(0, 0, 3)));
    expect_throw_with<c10::ValueError>([&] { source.read(2, 3); },
                                       "but row 3 holds NaN or infinity");
  }
}

TEST(VectorSourceTest, AFloat64ThatOverflowsFloat32IsNotFinite) {
  const TempDir dir;
  save_npy(dir / "x.npy", at::full({2, 2}, 1e300, at::kDouble));
  const VectorSource source(dir / "x.npy");
  expect_throw_with<c10::ValueError>([&] { source.read(0, 2); },
                                     "finite float32 values, but row 0");
  EXPECT_EQ(source.read(0, 2, at::kDouble).sum().item<double>(), 4e300);
}

TEST(VectorSourceTest, RefusesWhatIsNoVectors) {
  const TempDir dir;
  save_npy(dir / "x.npy", at::arange(3, at::kFloat));
  expect_throw_with<c10::ValueError>([&] { VectorSource(dir / "x.npy"); },
                                     "shape (N, dim) or (..., N, dim), but got shape (3,)");
  save_npy(dir / "x.npy", at::empty({3, 0}));
  expect_throw_with<c10::ValueError>([&] { VectorSource(dir / "x.npy"); }, "at least 1 dimension");
  save_npy(dir / "x.npy", at::arange(4).view({2, 2}));
  expect_throw_with<c10::TypeError>([&] { VectorSource(dir / "x.npy"); },
                                    "floating point vectors, but got int64");
  expect_throw_with<c10::ValueError>([&] { VectorSource(dir / "x.npy", "key"); },
                                     "holds one array");
  save_safetensors(dir / "x", {{"a", matrix()}, {"b", matrix()}});
  expect_throw_with<c10::ValueError>([&] { VectorSource(dir / "x"); }, "holds 2 tensors");
  expect_throw_with<c10::ValueError>([&] { VectorSource(dir / "x", "c"); }, "but it holds a, b");
  write_bytes(dir / "x", "");
  expect_throw_with<c10::ValueError>([&] { VectorSource(dir / "x"); }, "but it is empty");
  write_bytes(dir / "x", "just some text");
  expect_throw_with<c10::ValueError>([&] { VectorSource(dir / "x"); }, "first bytes are neither's");
}

TEST(VectorSourceTest, AFileCutAfterOpeningIsAnError) {
  const TempDir dir;
  save_npy(dir / "x.npy", matrix());
  const VectorSource source(dir / "x.npy");
  std::filesystem::resize_file(dir / "x.npy", 150);
  expect_throw_with<c10::ValueError>([&] { source.read(0, 5); }, "it was cut to 150 bytes");
  expect_throw_with<c10::IndexError>([&] { source.read(3, 3); },
                                     "rows within [0, 5), but got [3, 6)");
}

TEST(VectorSourceTest, AFileCutAfterReadingChangesNothing) {
  const TempDir dir;
  const auto whole = at::arange(20000, at::kFloat).view({5000, 4});
  save_npy(dir / "x.npy", whole);
  save_safetensors(dir / "x.safetensors", {{"x", whole}});
  const auto block = VectorSource(dir / "x.npy").read(0, 5000);
  const auto array = load_npy(dir / "x.npy");
  const auto tensor = SafetensorsFile(dir / "x.safetensors").tensor("x");
  for (const auto* name : {"x.npy", "x.safetensors"}) std::filesystem::resize_file(dir / name, 1);
  for (const auto& read : {block, array, tensor}) EXPECT_TRUE(at::equal(read, whole));
}

TEST(IndexSourceTest, RefusesIndicesThatInt64CannotHold) {
  const TempDir dir;
  // Compared as bits, because torch has no arithmetic for uint64.
  const auto indices = at::arange(6).view({3, 2});
  indices[2][1] = -1;
  save_npy(dir / "x.npy", indices.view(at::kUInt64));
  const IndexSource source(dir / "x.npy");
  EXPECT_TRUE(at::equal(source.read(0, 2), indices.narrow(0, 0, 2)));
  expect_throw_with<c10::ValueError>(
      [&] { source.read(1, 2); },
      "expected indices below 2^63, but got 18446744073709551615 at position 5");
  expect_throw_with<c10::ValueError>([&] { source.read_flat(3, 3); }, "at position 5");
  save_npy(dir / "x.npy", indices);
  EXPECT_TRUE(at::equal(IndexSource(dir / "x.npy").read(0, 3), indices));
}

TEST(IndexSourceTest, ReadsElementsOfRowsLargerThanABlock) {
  const TempDir dir;
  const auto indices = at::arange(20).view({2, 10});
  save_npy(dir / "x.npy", indices.to(at::kByte));
  const IndexSource source(dir / "x.npy");
  EXPECT_TRUE(at::equal(source.read_flat(7, 6), at::arange(7, 13)));
  EXPECT_EQ(source.read_flat(20, 0).numel(), 0);
  const auto refused = [&](int64_t first, int64_t count) {
    expect_throw_with<c10::IndexError>([&] { source.read_flat(first, count); },
                                       "elements within [0, 20)");
  };
  refused(15, 6);
  refused(-1, 2);
  refused(21, 0);
}

TEST(IndexSourceTest, ReadsEveryIntegerDtypeAndShape) {
  const TempDir dir;
  for (const auto dtype : {at::kChar, at::kByte, at::kShort, at::kInt, at::kLong, at::kUInt16,
                           at::kUInt32, at::kUInt64}) {
    save_npy(dir / "x.npy", at::arange(20).to(dtype).view({5, 4}));
    expect_blocks(IndexSource(dir / "x.npy"), at::arange(20).view({5, 4}));
  }
  save_npy(dir / "x.npy", at::arange(3));
  EXPECT_EQ(IndexSource(dir / "x.npy").row_length(), 1);
  save_npy(dir / "x.npy", at::arange(1).squeeze());
  expect_throw_with<c10::ValueError>([&] { IndexSource(dir / "x.npy"); }, "got shape ()");
  save_npy(dir / "x.npy", matrix());
  expect_throw_with<c10::TypeError>([&] { IndexSource(dir / "x.npy"); },
                                    "whole-number indices, but got Float");
}

}  // namespace
}  // namespace torchvq::io::array_source_test
