// Reading files: small parts by copy, large ones through memory maps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace torchvq::io {

/// Part of a file, mapped privately: writing to it changes memory, never the file.
class MappedRange {
 public:
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  ~MappedRange();

  char* data() const { return base_ + lead_; }

 private:
  friend class InputFile;
  MappedRange(char* base, size_t length, size_t lead) : base_(base), length_(length), lead_(lead) {}

  char* base_;
  size_t length_;
  size_t lead_;  // bytes between the page boundary and the range
};

/// An open file. Maps outlive it.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  /// Copies up to `bytes` bytes from `offset`; returns how many there were.
  size_t read(int64_t offset, void* target, size_t bytes) const;

  /// Maps `bytes` > 0 bytes from `offset`. The range must lie in the file; a file that was cut
  /// since it was opened is an error here instead of a bus error later.
  std::shared_ptr<MappedRange> map(int64_t offset, int64_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace torchvq::io
