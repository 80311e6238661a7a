// Reads MNIST's idx files (and those of Fashion-MNIST), plain or compressed by gzip.
#pragma once

#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

/// The bytes of a file; where there is none of this name but one with .gz behind it, of what gzip
/// makes of that.
inline std::vector<uint8_t> read_bytes(const std::string& path) {
  using Stream = std::unique_ptr<FILE, int (*)(FILE*)>;
  Stream stream(fopen(path.c_str(), "rb"), fclose);
  if (!stream) {
    const std::string compressed = path + ".gz";
    TORCH_CHECK_VALUE(access(compressed.c_str(), R_OK) == 0, "expected ", path, " or ", compressed,
                      " to be readable");
    std::string quoted;
    for (const char c : compressed) {
      quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    stream = Stream(popen(("gzip -dc -- '" + quoted + "'").c_str(), "r"), pclose);
    TORCH_CHECK(stream, "expected gzip to be there to read ", compressed);
  }
  std::vector<uint8_t> bytes, block(1 << 20);
  while (const size_t count = fread(block.data(), 1, block.size(), stream.get())) {
    bytes.insert(bytes.end(), block.begin(), block.begin() + static_cast<int64_t>(count));
  }
  return bytes;
}

/// The pictures (N, 1, H, W), uint8, of an idx file: magic, three big-endian sizes, pixels.
inline torch::Tensor read_idx_pictures(const std::string& path) {
  const auto bytes = read_bytes(path);
  const bool is_idx =
      bytes.size() >= 16 && bytes[0] == 0 && bytes[1] == 0 && bytes[2] == 8 && bytes[3] == 3;
  TORCH_CHECK_VALUE(is_idx, "expected ", path, " to be an idx file of pictures");
  const auto size = [&](size_t axis) {
    const uint8_t* at = bytes.data() + 4 + 4 * axis;
    return int64_t{at[0]} << 24 | int64_t{at[1]} << 16 | int64_t{at[2]} << 8 | int64_t{at[3]};
  };
  const std::vector<int64_t> shape{size(0), 1, size(1), size(2)};
  const auto pixels = static_cast<int64_t>(bytes.size()) - 16;
  // Sizes of 2^31 and more would overflow the product; no file of pictures has them.
  const bool fits = size(0) < (1 << 30) && size(1) < (1 << 15) && size(2) < (1 << 15);
  TORCH_CHECK_VALUE(fits && size(0) * size(1) * size(2) == pixels, "expected ", path, " to hold ",
                    shape[0], " pictures of ", shape[2], " x ", shape[3], ", but it has ", pixels,
                    " pixels");
  return torch::from_blob(const_cast<uint8_t*>(bytes.data()) + 16, shape, torch::kUInt8).clone();
}
