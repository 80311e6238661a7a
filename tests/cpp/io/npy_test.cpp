// The headers below are those of numpy 2, byte for byte; tests/python/test_io.py compares with the
// installed numpy.
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torchvq/io/error.h>
#include <torchvq/io/npy.h>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io::npy_test {
namespace {

using torchvq::testing::expect_throw_with;
using torchvq::testing::read_bytes;
using torchvq::testing::TempDir;
using torchvq::testing::write_bytes;

// A file of `version` with this dictionary, padded as numpy pads it.
std::string npy_bytes(const std::string& dictionary, const std::string& data, int version = 1) {
  std::string bytes("\x93NUMPY", 6);
  bytes += {static_cast<char>(version), '\0'};
  const size_t length_bytes = version == 1 ? 2 : 4;
  std::string text = dictionary;
  text.append(63 - (8 + length_bytes + text.size()) % 64, ' ');
  text += '\n';
  for (size_t i = 0; i < length_bytes; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  return bytes + text + data;
}

template <typename T>
std::string raw(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

const std::string kFloats = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
const std::string kSixFloats = raw<float>({0, 1, 2, 3, 4, 5});

class NpyTest : public ::testing::Test {
 protected:
  at::Tensor load(const std::string& bytes) {
    write_bytes(dir_ / "x.npy", bytes);
    return load_npy(dir_ / "x.npy");
  }

  template <typename Error>
  void expect_refused(const std::string& bytes, const std::string& fragment) {
    expect_throw_with<Error>([&] { load(bytes); }, fragment);
  }

  TempDir dir_;
};

TEST_F(NpyTest, ReadsEveryVersion) {
  for (const int version : {1, 2, 3}) {
    const auto x = load(npy_bytes(kFloats, kSixFloats, version));
    EXPECT_TRUE(at::equal(x, at::arange(6, at::kFloat).view({2, 3}))) << version;
  }
}

TEST_F(NpyTest, ReadsFortranOrder) {
  const auto x =
      load(npy_bytes("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", kSixFloats));
  EXPECT_TRUE(at::equal(x, at::arange(6, at::kFloat).view({3, 2}).t()));
}

TEST_F(NpyTest, ReadsFortranOrderOfThreeAxes) {
  const auto x =
      load(npy_bytes("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2, 3), }", kSixFloats));
  EXPECT_TRUE(at::equal(x, at::arange(6, at::kFloat).view({3, 2, 1}).permute({2, 1, 0})));
}

TEST_F(NpyTest, ReadsTheHeaderAlone) {
  const auto bytes =
      npy_bytes("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2, 3), }", kSixFloats);
  write_bytes(dir_ / "x.npy", bytes);
  const auto header = load_npy_header(dir_ / "x.npy");
  EXPECT_EQ(header.dtype, at::kFloat);
  EXPECT_EQ(header.shape, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(header.fortran_order);
}

TEST_F(NpyTest, ReadsBigEndian) {
  const auto x = load(npy_bytes("{'descr': '>i2', 'fortran_order': False, 'shape': (3,), }",
                                std::string("\x00\x01\x01\x00\xff\xfe", 6)));
  EXPECT_TRUE(at::equal(x, at::tensor({1, 256, -2}, at::kShort)));
}

TEST_F(NpyTest, ReadsBoolsOfAnyByteAsTrueOrFalse) {
  const auto x = load(npy_bytes("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }",
                                std::string("\0\1\7", 3)));
  EXPECT_TRUE(at::equal(x, at::tensor({0, 1, 1}, at::kByte).to(at::kBool)));
}

TEST_F(NpyTest, ReadsScalarsAndEmptyArrays) {
  EXPECT_EQ(
      load(npy_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", raw<double>({2.5})))
          .item<double>(),
      2.5);
  EXPECT_EQ(
      load(npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7), }", "")).sizes(),
      at::IntArrayRef({0, 7}));
  EXPECT_EQ(
      load(npy_bytes("{'descr': '<f4', 'fortran_order': True, 'shape': (7, 0), }", "")).sizes(),
      at::IntArrayRef({7, 0}));
}

TEST_F(NpyTest, ReadsDictionariesOfOtherWriters) {
  const auto expected = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_TRUE(at::equal(
      load(npy_bytes("{\"shape\":(2L,3L),'descr':'=f4' , 'fortran_order' :False}", kSixFloats)),
      expected));
  EXPECT_TRUE(at::equal(load(npy_bytes(kFloats, kSixFloats + "more")), expected))
      << "numpy allows bytes after the array";
}

TEST_F(NpyTest, ReadsDataThatIsNotAligned) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += {static_cast<char>(kFloats.size()), '\0'};
  const auto x = load(bytes + kFloats + kSixFloats);
  EXPECT_TRUE(at::equal(x, at::arange(6, at::kFloat).view({2, 3})));
}

TEST_F(NpyTest, WritingToTheTensorLeavesTheFileAlone) {
  const auto bytes = npy_bytes(kFloats, kSixFloats);
  load(bytes).fill_(7);
  EXPECT_EQ(read_bytes(dir_ / "x.npy"), bytes);
}

TEST_F(NpyTest, RefusesEveryTruncation) {
  const auto bytes = npy_bytes(kFloats, kSixFloats);
  for (size_t length = 0; length < bytes.size(); ++length) {
    expect_refused<c10::ValueError>(bytes.substr(0, length), "x.npy: expected ");
  }
}

TEST_F(NpyTest, RefusesOtherFiles) {
  expect_refused<c10::ValueError>("PK\x03\x04 something else entirely", "begins with \\x93NUMPY");
  expect_refused<c10::ValueError>(npy_bytes(kFloats, kSixFloats, 4),
                                  "version 1.0, 2.0 or 3.0, but got 4.0");
  expect_throw_with<IoError>([&] { load_npy(dir_ / "absent.npy"); }, "No such file");
  expect_throw_with<IoError>([&] { load_npy(dir_ / ""); }, "Is a directory");
  expect_throw_with<c10::ValueError>([&] { load_npy("/dev/null"); }, "a regular file");
}

TEST_F(NpyTest, RefusesOtherDtypes) {
  const auto with = [](const std::string& descr) {
    return npy_bytes("{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,), }",
                     std::string(16, '\0'));
  };
  expect_refused<c10::TypeError>(with("'<c8'"), "but got dtype '<c8'");
  expect_refused<c10::TypeError>(with("'|O'"), "but got dtype '|O'");
  expect_refused<c10::TypeError>(with("'|V2'"), "but got dtype '|V2'");
  expect_refused<c10::TypeError>(with("''"), "but got dtype ''");
  expect_refused<c10::TypeError>(with("[('a', '<f4')]"), "structured dtype [('a', '<f4')]");
  expect_refused<c10::TypeError>(with("[('a', [('b', '<f4')"), "dtype [('a', [('b', '<f4')");
}

TEST_F(NpyTest, RefusesDamagedHeaders) {
  for (const std::string dictionary :
       {"", "{}", "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'more': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr: '<f4'"}) {
    expect_refused<c10::ValueError>(npy_bytes(dictionary, kSixFloats), "it is damaged");
  }
}

TEST_F(NpyTest, RefusesShapesThatOverflow) {
  expect_refused<c10::ValueError>(
      npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
                kSixFloats),
      "fits in memory addresses");
  expect_refused<c10::ValueError>(
      npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }", kSixFloats),
      "expected 28 bytes of data");
}

TEST_F(NpyTest, WritesWhatNumpyWrites) {
  save_npy(dir_ / "y.npy", at::arange(6, at::kFloat).view({2, 3}));
  EXPECT_EQ(read_bytes(dir_ / "y.npy"), npy_bytes(kFloats, kSixFloats));
  save_npy(dir_ / "y.npy", at::arange(2, at::kLong));
  EXPECT_EQ(
      read_bytes(dir_ / "y.npy"),
      npy_bytes("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", raw<int64_t>({0, 1})));
}

TEST_F(NpyTest, WritesStridedTensorsAndScalars) {
  const auto x = at::arange(12, at::kInt).view({3, 4}).t().slice(0, 0, 4, 2);
  save_npy(dir_ / "y.npy", x);
  EXPECT_TRUE(at::equal(load_npy(dir_ / "y.npy"), x));
  save_npy(dir_ / "y.npy", at::empty({3, 0}));
  EXPECT_EQ(load_npy(dir_ / "y.npy").sizes(), at::IntArrayRef({3, 0}));
  expect_throw_with<c10::TypeError>(
      [&] { save_npy(dir_ / "z.npy", at::empty({1}, at::kBFloat16)); }, "BFloat16");
  EXPECT_EQ(dir_.files(), 1u);
}

TEST_F(NpyTest, WritesTheValuesOfNegativeViews) {
  const auto x = at::arange(6, at::kFloat).view({2, 3});
  save_npy(dir_ / "y.npy", at::_neg_view(x));
  EXPECT_TRUE(at::equal(load_npy(dir_ / "y.npy"), x * -1));
}

TEST_F(NpyTest, WritesNoMoreAxesThanItReads) {
  const std::vector<int64_t> most(64, 1), more(65, 1);
  save_npy(dir_ / "y.npy", at::ones(most));
  EXPECT_TRUE(at::equal(load_npy(dir_ / "y.npy"), at::ones(most)));
  expect_throw_with<c10::ValueError>(
      [&] { save_npy(dir_ / "z.npy", at::ones(more)); },
      "save_npy: expected tensor to have at most 64 axes, but got 65");
  EXPECT_EQ(dir_.files(), 1u);
}

TEST_F(NpyTest, SparseTensorsAreRefusedByName) {
  const auto sparse = at::ones({2, 2}).to_sparse();
  expect_throw_with<c10::TypeError>([&] { save_npy(dir_ / "y.npy", sparse); },
                                    "save_npy: expected tensor to be a dense tensor, but got");
  expect_throw_with<c10::TypeError>(
      [&] { save_safetensors(dir_ / "y.safetensors", {{"a", sparse}}); },
      "save_safetensors: expected 'a' to be a dense tensor, but got");
  EXPECT_EQ(dir_.files(), 0u);
}

TEST_F(NpyTest, StreamsPieces) {
  NpyWriter writer(dir_ / "y.npy", at::kLong, {3, 2});
  writer.append(at::arange(4, at::kLong));
  expect_throw_with<c10::ValueError>([&] { writer.append(at::arange(3, at::kLong)); },
                                     "at most 2 more elements");
  expect_throw_with<c10::TypeError>([&] { writer.append(at::arange(2, at::kInt)); },
                                    "to be Long, but got Int");
  expect_throw_with<c10::ValueError>([&] { writer.finish(); }, "expected 6 elements, but got 4");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "y.npy"));
  writer.append(at::arange(4, 6, at::kLong));
  writer.finish();
  EXPECT_TRUE(at::equal(load_npy(dir_ / "y.npy"), at::arange(6, at::kLong).view({3, 2})));
}

}  // namespace
}  // namespace torchvq::io::npy_test
