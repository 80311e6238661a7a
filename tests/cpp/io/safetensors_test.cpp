#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torchvq/io/error.h>
#include <torchvq/io/safetensors.h>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io::safetensors_test {
namespace {

using torchvq::testing::expect_throw_with;
using torchvq::testing::read_bytes;
using torchvq::testing::TempDir;
using torchvq::testing::write_bytes;

std::string safetensors_bytes(const std::string& header, const std::string& data, uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}

std::string safetensors_bytes(const std::string& header, const std::string& data = "") {
  return safetensors_bytes(header, data, header.size());
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return R"(")" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"data_offsets":)" + offsets + "}";
}

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsFile open(const std::string& bytes) {
    write_bytes(dir_ / "x.safetensors", bytes);
    return SafetensorsFile(dir_ / "x.safetensors");
  }

  void expect_refused(const std::string& bytes, const std::string& fragment) {
    write_bytes(dir_ / "x.safetensors", bytes);
    expect_throw_with<c10::ValueError>([&] { SafetensorsFile file(dir_ / "x.safetensors"); },
                                       fragment);
  }

  TempDir dir_;
};

TEST_F(SafetensorsTest, KeepsEveryDtypeShapeAndTheMetadata) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                           at::kShort, at::kChar, at::kByte, at::kBool}) {
    tensors[std::string("of ") + c10::toString(dtype)] =
        at::arange(6, at::kFloat).sub(2).abs().to(dtype).view({2, 3}).t();
  }
  tensors["scalar"] = at::arange(1, at::kFloat).squeeze();
  tensors["empty"] = at::empty({0, 4});
  tensors["name \"quoted\" \xc3\xa9"] = at::arange(3);
  const std::map<std::string, std::string> metadata = {{"a", "1"}, {"b", "line\nbreak"}};
  save_safetensors(dir_ / "y.safetensors", tensors, metadata);

  const SafetensorsFile file(dir_ / "y.safetensors");
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(file.tensor(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(file.tensor(name), tensor)) << name;
  }
}

TEST_F(SafetensorsTest, WritesTheValuesOfNegativeViews) {
  const auto x = at::arange(6, at::kFloat).view({2, 3});
  save_safetensors(dir_ / "y.safetensors", {{"x", at::_neg_view(x)}});
  EXPECT_TRUE(at::equal(SafetensorsFile(dir_ / "y.safetensors").tensor("x"), x * -1));
}

TEST_F(SafetensorsTest, TheSameTensorsGiveTheSameBytes) {
  const std::map<std::string, at::Tensor> tensors = {{"b", at::arange(3)},
                                                     {"a", at::arange(5, at::kByte)}};
  save_safetensors(dir_ / "1", tensors);
  save_safetensors(dir_ / "2", tensors);
  EXPECT_EQ(read_bytes(dir_ / "1"), read_bytes(dir_ / "2"));
}

TEST_F(SafetensorsTest, TensorsOutliveTheFileAndLeaveItAlone) {
  save_safetensors(dir_ / "y", {{"x", at::arange(4, at::kFloat)}});
  const auto before = read_bytes(dir_ / "y");
  at::Tensor x;
  {
    const SafetensorsFile file(dir_ / "y");
    x = file.tensor("x");
  }
  x.add_(1);
  EXPECT_TRUE(at::equal(x, at::arange(1, 5, at::kFloat)));
  EXPECT_EQ(read_bytes(dir_ / "y"), before);
}

TEST_F(SafetensorsTest, ReadsDataThatIsNotAligned) {
  const auto file = open(safetensors_bytes(
      "{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "I32", "[1]", "[1,5]") + "}",
      std::string("\x07\x01\x02\x00\x00", 5)));
  EXPECT_EQ(file.tensor("b").item<int32_t>(), 0x0201);
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  save_safetensors(dir_ / "y", {{"x", at::arange(4, at::kFloat)}}, {{"key", "value"}});
  const auto bytes = read_bytes(dir_ / "y");
  for (size_t length = 0; length < bytes.size(); ++length) {
    expect_refused(bytes.substr(0, length), "x.safetensors: expected ");
  }
  expect_refused(bytes + "x", "bytes of data, but the file holds 17");
}

TEST_F(SafetensorsTest, RefusesHostileLengths) {
  expect_refused(safetensors_bytes("{}", "", UINT64_MAX), "at most 100000000 bytes");
  expect_refused(safetensors_bytes("{}", "", uint64_t{1} << 63), "at most 100000000 bytes");
  expect_refused(safetensors_bytes("{}", "", 99999999), "but the file ends after 10");
  expect_refused(safetensors_bytes("{}", "", 0), "begins with '{'");
}

TEST_F(SafetensorsTest, RefusesOffsetsThatDoNotFit) {
  const std::string data(8, '\0');
  const auto refuse = [&](const std::string& entries, const std::string& fragment) {
    expect_refused(safetensors_bytes("{" + entries + "}", data), fragment);
  };
  refuse(entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[1]", "[4,8]"),
         "overlap or leave a gap at byte 4");
  refuse(entry("a", "F32", "[1]", "[4,8]"), "overlap or leave a gap at byte 0");
  refuse(entry("a", "F32", "[1]", "[0,4]"), "expected 4 bytes of data, but the file holds 8");
  refuse(entry("a", "F32", "[3]", "[0,12]"), "expected 12 bytes of data");
  refuse(entry("a", "F32", "[2]", "[8,0]"), "to be [begin, end]");
  refuse(entry("a", "F32", "[3]", "[0,8]"), "to fill its data_offsets");
  refuse(entry("a", "F32", "[2]", "[0,8,8]"), "to be [begin, end]");
  refuse(entry("a", "F32", "[2]", "[0,-8]"), "list of whole numbers");
  refuse(entry("a", "F32", "[2]", "[0,8.0]"), "list of whole numbers");
  refuse(entry("a", "F32", "[2]", "[0,18446744073709551615]"), "list of whole numbers");
  refuse(entry("a", "F32", "[4611686018427387904,4]", "[0,8]"), "to fill its data_offsets");
  refuse(entry("a", "F32", "[-2]", "[0,8]"), "list of whole numbers");
  refuse(entry("a", "F32", "2", "[0,8]"), "list of whole numbers");
}

TEST_F(SafetensorsTest, RefusesDamagedHeaders) {
  const std::string data(8, '\0');
  const auto x = entry("x", "F32", "[2]", "[0,8]");
  expect_refused(safetensors_bytes("{" + x, data), "to be JSON");
  expect_refused(safetensors_bytes("{" + x + "}}", data), "to be JSON");
  // Behind a zero byte, where the parser would stop, bytes could hide.
  const auto text = "{" + x + "}" + '\0';
  for (const std::string& hidden : {std::string(), x, std::string("\xff")})
    expect_refused(safetensors_bytes(text + hidden, data), "to be JSON");
  expect_refused(safetensors_bytes("{" + x + "," + x + "}", data), "'x' occurs twice");
  expect_refused(
      safetensors_bytes(R"({"x":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})",
                        data),
      "'dtype' occurs twice");
  expect_refused(safetensors_bytes(R"({"x":{"dtype":"F32","shape":[2]}})", data),
                 "data_offsets of 'x'");
  expect_refused(safetensors_bytes(R"({"x":3})", data), "expected 'x' to have a dtype");
  expect_refused(safetensors_bytes(R"({"__metadata__":{"a":1},)" + x + "}", data),
                 "strings to strings");
  expect_refused(safetensors_bytes(R"({"__metadata__":[],)" + x + "}", data), "strings to strings");
  expect_refused(safetensors_bytes("{\"x\":" + std::string(1000000, '['), data), "nests deeper");
  expect_refused(safetensors_bytes("[]", data), "begins with '{'");
  write_bytes(dir_ / "x", safetensors_bytes("{" + entry("x", "F4", "[2]", "[0,8]") + "}", data));
  expect_throw_with<c10::TypeError>([&] { SafetensorsFile file(dir_ / "x"); },
                                    "known dtype, but got F4");
}

TEST_F(SafetensorsTest, NamesTheTensorsThereAre) {
  save_safetensors(dir_ / "y", {{"a", at::arange(1)}, {"b", at::arange(1)}});
  const SafetensorsFile file(dir_ / "y");
  expect_throw_with<c10::ValueError>([&] { file.tensor("c"); },
                                     "a tensor named 'c', but it holds a, b");
  expect_throw_with<IoError>([&] { SafetensorsFile absent(dir_ / "absent"); }, "No such file");
}

TEST_F(SafetensorsTest, RefusesWhatTheFormatCannotHold) {
  expect_throw_with<c10::TypeError>(
      [&] { save_safetensors(dir_ / "y", {{"x", at::empty({1}, at::kComplexFloat)}}); },
      "but got ComplexFloat");
  expect_throw_with<c10::ValueError>(
      [&] { save_safetensors(dir_ / "y", {{"__metadata__", at::arange(1)}}); }, "named otherwise");
  expect_throw_with<c10::ValueError>(
      [&] { save_safetensors(dir_ / "y", {{"\xff", at::arange(1)}}); }, "UTF-8");
  EXPECT_EQ(dir_.files(), 0u);
}

}  // namespace
}  // namespace torchvq::io::safetensors_test
