// Reads files by copy: a mapped file that is truncated or rewritten crashes its readers.
#pragma once

#include <cstdint>
#include <string>

namespace torchvq::io {

/// An open file.
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

  /// The same for a range that lies in the file. Throws c10::ValueError if the file was truncated
  /// after it was opened.
  void read_all(int64_t offset, void* target, size_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace torchvq::io
