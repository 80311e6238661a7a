// Shared by all fuzzers: the bytes become a file, a reader reads it, and must either provide all of
// its elements or throw a c10 error. Anything else is a finding.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/ne.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace torchvq::fuzz {

/// A file in memory that lives as long as the object.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : descriptor_(memfd_create("fuzzed", 0)) {
    TORCH_CHECK(descriptor_ >= 0 && write(descriptor_, data, size) == static_cast<ssize_t>(size),
                "fuzz: expected a file in memory to be written");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// Reads every element, so that a wrong length is detected.
inline void touch(const at::Tensor& tensor) {
  if (tensor.numel() > 0) (void)tensor.ne(0).sum().item<int64_t>();
}

/// Runs `read(path)` on a file of these bytes.
template <typename Read>
int read_file(const uint8_t* data, size_t size, const Read& read) {
  const MemoryFile file(data, size);
  try {
    read(file.path());
  } catch (const c10::Error&) {
    return 0;
  }
  return 0;
}

}  // namespace torchvq::fuzz
