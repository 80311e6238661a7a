// Damaged headers: for any bytes, a reader returns or throws a one-line c10 error; it never
// crashes.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <torchvq/io/array_source.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/safetensors.h>

#include <cstdint>
#include <functional>
#include <random>

#include "io/temp_dir.h"

namespace torchvq::io::fuzz_test {
namespace {

using torchvq::testing::read_bytes;
using torchvq::testing::TempDir;
using torchvq::testing::write_bytes;

// A refused file costs about 5 ms, most of it c10's backtrace.
constexpr int kMutations = 1000;

std::string mutate(std::string bytes, size_t header, std::mt19937_64& random) {
  static const std::string kInteresting = "{}[]()'\",:0123456789-LFT \\\n\0\xff";
  const auto at = [&] { return random() % std::min(header, bytes.size()); };
  for (auto changes = 1 + random() % 3; changes > 0 && !bytes.empty(); --changes) {
    switch (random() % 5) {
      case 0:
        bytes[at()] = static_cast<char>(random());
        break;
      case 1:
        bytes[at()] = kInteresting[random() % kInteresting.size()];
        break;
      case 2:
        bytes.erase(at(), 1 + random() % 4);
        break;
      case 3:
        bytes.insert(at(), 1, kInteresting[random() % kInteresting.size()]);
        break;
      default:
        bytes.resize(at());
        break;
    }
  }
  return bytes;
}

// Reads every element, so that a wrong length causes a bus error or an error of AddressSanitizer.
void touch(const at::Tensor& tensor) {
  if (tensor.numel() > 0) EXPECT_GE(tensor.ne(0).sum().item<int64_t>(), 0);
}

void fuzz(const std::string& valid, size_t header,
          const std::function<void(const std::string&)>& read) {
  const TempDir dir;
  std::mt19937_64 random(7);
  int accepted = 0, refused = 0;
  for (int i = 0; i < kMutations; ++i) {
    write_bytes(dir / "x", mutate(valid, header, random));
    try {
      read(dir / "x");
      ++accepted;
    } catch (const c10::Error& error) {
      EXPECT_GT(std::string(error.what_without_backtrace()).size(), 10u);
      ++refused;
    }
  }
  // Most damage is detected; some (a padding space, a shape that still fits) is harmless.
  EXPECT_GT(refused, kMutations / 2);
  EXPECT_GT(accepted, 0);
}

TEST(FuzzTest, Npy) {
  const TempDir dir;
  save_npy(dir / "x", at::arange(12, at::kFloat).view({3, 4}));
  fuzz(read_bytes(dir / "x"), 76, [](const std::string& path) {
    touch(load_npy(path));
    const ArraySource source(path);
    touch(source.read(0, source.rows()));
  });
}

TEST(FuzzTest, Safetensors) {
  const TempDir dir;
  save_safetensors(dir / "x",
                   {{"a", at::arange(12, at::kFloat).view({3, 4})}, {"b", at::arange(3)}},
                   {{"key", "value"}});
  fuzz(read_bytes(dir / "x"), 160, [](const std::string& path) {
    const SafetensorsFile file(path);
    for (const auto& [name, entry] : file.entries()) touch(file.tensor(name));
  });
}

TEST(FuzzTest, Codec) {
  const TempDir dir;
  save_codec(dir / "x",
             make_codec(at::arange(6, at::kFloat).view({3, 2}), at::arange(3), "euclidean"));
  fuzz(read_bytes(dir / "x"), 500,
       [](const std::string& path) { touch(load_codec(path).codebook); });
}

}  // namespace
}  // namespace torchvq::io::fuzz_test
