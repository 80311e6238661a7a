// Files that appear complete or not at all.
#pragma once

#include <torchvq/export.h>

#include <cstddef>
#include <string>

namespace torchvq::io {

/// A file being written. The bytes go to a temporary file in the directory of `path`; commit()
/// flushes it to the disk and renames it over `path` in one step, so that no reader sees an
/// incomplete file, and an existing file survives every failure. Destruction without commit()
/// removes the temporary file.
///
/// A symbolic link is followed, to a file that does not exist too, and an existing file keeps its
/// permissions. Something at `path` that is not a regular file (a device, a pipe) is written
/// directly.
///
/// Throws       IoError when the operating system refuses (no space, no permission, no such
///              directory).
/// Example      OutputFile file("codes.bin"); file.write(data, size); file.commit();
class TORCHVQ_API OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Reserves space for `bytes`, so that a full disk is an error before the work instead of after
  /// it. Does nothing on file systems that cannot reserve space.
  void reserve(size_t bytes);
  void write(const void* data, size_t bytes);
  void commit();

  const std::string& path() const { return path_; }

 private:
  void open_temporary(unsigned mode);
  void discard() noexcept;
  [[noreturn]] void fail(const char* action) const;

  std::string path_;       // as the caller named it, for messages
  std::string target_;     // with links resolved
  std::string temporary_;  // empty when writing directly
  int descriptor_ = -1;
  int slot_ = -1;  // place in the list that remove_unfinished_files() walks
};

/// Removes the temporary files of all OutputFiles of this process. Async-signal-safe; only for the
/// handler of SIGINT and SIGTERM in a program that is about to exit.
TORCHVQ_API void remove_unfinished_files() noexcept;

}  // namespace torchvq::io
