#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "io/system_error.h"

namespace torchvq::io {
namespace {

int64_t size_of(int descriptor) {
  struct stat status{};
  return ::fstat(descriptor, &status) == 0 ? static_cast<int64_t>(status.st_size) : -1;
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  struct stat status{};
  // Checked before opening, because opening a pipe would wait for its writer.
  if (::stat(path_.c_str(), &status) != 0) throw_system_error(path_, "open", errno);
  if (S_ISDIR(status.st_mode)) throw_system_error(path_, "open", EISDIR);
  TORCH_CHECK_VALUE(S_ISREG(status.st_mode), path_,
                    ": expected a regular file, but got a device or a pipe");
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw_system_error(path_, "open", errno);
  size_ = size_of(descriptor_);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

size_t InputFile::read(int64_t offset, void* target, size_t bytes) const {
  size_t total = 0;
  while (total < bytes) {
    const auto got = ::pread(descriptor_, static_cast<char*>(target) + total, bytes - total,
                             offset + static_cast<off_t>(total));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error(path_, "read", errno);
    if (got == 0) break;
    total += static_cast<size_t>(got);
  }
  return total;
}

void InputFile::read_all(int64_t offset, void* target, size_t bytes) const {
  TORCH_CHECK_VALUE(read(offset, target, bytes) == bytes, path_,
                    ": expected the file to stay as it was when opened, but it was cut to ",
                    size_of(descriptor_), " bytes");
}

}  // namespace torchvq::io
