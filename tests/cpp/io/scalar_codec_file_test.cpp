// Files of quantizers without a codebook whose numbers are out of range.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/io/scalar_codec.h>

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

}  // namespace
}  // namespace torchvq::io::scalar_codec_file_test
