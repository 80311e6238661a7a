// Files of quantizers without a codebook whose numbers are out of range.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/io/scalar_codec.h>

#include <limits>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io::scalar_codec_file_test {
namespace {

using torchvq::testing::expect_throw_with;
using torchvq::testing::TempDir;
using Metadata = std::map<std::string, std::string>;

Metadata lookup_free(const std::string& codebook_size, const std::string& num_codebooks) {
  return {{"format_version", "1"},
          {"class", "LFQ"},
          {"codebook_size", codebook_size},
          {"num_codebooks", num_codebooks},
          {"dim", "3"}};
}

TEST(ScalarCodecFileTest, NumbersAtTheEndOfTheirTypeAreRefused) {
  const TempDir dir;
  const auto file = dir / "x.safetensors";
  for (const auto& size : {"9223372036854775807", "4611686018427387905", "6", "1"}) {
    save_safetensors(file, {{"a", at::ones({1})}}, lookup_free(size, "1"));
    expect_throw_with<c10::ValueError>([&] { load_scalar_codec(file); },
                                       "expected codebook_size to be a power of two");
  }
  save_safetensors(file, {{"a", at::ones({1})}}, lookup_free("16", "9223372036854775807"));
  expect_throw_with<c10::ValueError>([&] { load_scalar_codec(file); },
                                     "expected num_codebooks to be");
}

fit::ScalarCodec rounded() {
  fit::ScalarCodec codec;
  codec.method = "fsq";
  codec.levels = {8, 5};
  codec.num_codebooks = 1;
  codec.dim = 3;
  codec.in_weight = at::ones({2, 3});
  codec.in_bias = at::ones({2});
  codec.out_weight = at::ones({3, 2});
  codec.out_bias = at::ones({3});
  return codec;
}

void write(const std::string& path, const fit::ScalarCodec& codec) {
  OutputFile file(path);
  save_scalar_codec(file, codec);
}

TEST(ScalarCodecFileTest, WhatCannotBeReadIsNotWritten) {
  const TempDir dir;
  const auto refused = [&](auto change, const std::string& fragment) {
    auto codec = rounded();
    change(codec);
    expect_throw_with<c10::ValueError>([&] { write(dir / "c", codec); }, fragment);
  };
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  refused([&](auto& codec) { codec.in_weight.fill_(nan); }, "to be finite in float32");
  refused([](auto& codec) { codec.out_bias = codec.out_bias.to(at::kDouble).mul(1e300); },
          "to be finite in float32");
  const auto levels = [&](const std::vector<int64_t>& given, const std::string& fragment) {
    refused(
        [&](auto& codec) {
          const auto features = static_cast<int64_t>(given.size());
          codec.levels = given;
          codec.in_weight = at::ones({features, 3});
          codec.in_bias = at::ones({features});
          codec.out_weight = at::ones({3, features});
        },
        fragment);
  };
  levels(std::vector<int64_t>(8, 65536), "the product of levels to be at most 2^62");
  levels({65537, 2}, "levels to be in [2, 65536]");
  EXPECT_EQ(dir.files(), 0u);
  auto wide = rounded();
  wide.in_weight = wide.in_weight.to(at::kDouble);
  write(dir / "c", wide);
  EXPECT_EQ(load_scalar_codec(dir / "c").levels, wide.levels);
}

}  // namespace
}  // namespace torchvq::io::scalar_codec_file_test
