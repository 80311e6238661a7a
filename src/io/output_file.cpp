#include <fcntl.h>
#include <sys/stat.h>
#include <torchvq/io/output_file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "io/system_error.h"
#include "io/unfinished_files.h"

namespace torchvq::io {
namespace {

// The place that a link to a file yet to be made points to, over further links.
std::string follow_dangling_link(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux
  std::filesystem::path target = path;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code no_link;
    const auto next = std::filesystem::read_symlink(target, no_link);
    if (no_link) return target.string();
    target = target.parent_path() / next;
  }
  throw_system_error(path, "write", ELOOP);
}

std::string resolve_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (real) return real.get();
  struct stat existing{};
  // The link of /dev/stdout to a pipe names no path, but can be opened.
  return ::stat(path.c_str(), &existing) == 0 ? path : follow_dangling_link(path);
}

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Hidden, in the same directory (rename cannot cross file systems), and unique to this process.
std::string temporary_name(const std::string& target) {
  static constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device device;
  std::string suffix;
  for (int i = 0; i < 8; ++i) suffix += kDigits[device() % 36];
  return directory_of(target) + "/.torchvq-" + suffix + ".tmp";
}

void sync_directory(const std::string& target) noexcept {
  // Makes the rename itself durable; failures are ignored, since not every
  // directory can be synchronised.
  const int directory = ::open(directory_of(target).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  ::fsync(directory);
  ::close(directory);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(resolve_links(path_)) {
  struct stat existing{};
  const bool exists = ::stat(target_.c_str(), &existing) == 0;
  // Such as a name that is too long, which would fail only at the rename, after the work.
  if (!exists && errno != ENOENT) fail("write");
  if (exists && S_ISDIR(existing.st_mode)) throw_system_error(path_, "write", EISDIR);
  if (exists && !S_ISREG(existing.st_mode)) {
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail("open for writing");
    return;
  }
  if (exists && ::access(target_.c_str(), W_OK) != 0) fail("write");
  open_temporary(0666);
  if (exists) ::fchmod(descriptor_, existing.st_mode & 07777);
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::open_temporary(unsigned mode) {
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    temporary_ = temporary_name(target_);
    // Listed before it exists: a signal in between finds nothing to remove,
    // but no file is left behind.
    slot_ = enter_unfinished_file(temporary_);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor_ >= 0) return;
    leave_unfinished_file(std::exchange(slot_, -1));
    temporary_.clear();
    if (errno != EEXIST) break;
  }
  fail("write");
}

void OutputFile::reserve(size_t bytes) {
#ifdef __linux__
  if (temporary_.empty() || bytes == 0) return;
  if (::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail("write");
#endif
}

void OutputFile::write(const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  constexpr size_t kMostAtOnce = size_t{1} << 30;
  while (bytes > 0) {
    const auto written = ::write(descriptor_, next, std::min(bytes, kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write");
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void OutputFile::commit() {
  const bool synced = temporary_.empty() || ::fsync(descriptor_) == 0;
  // Not every file system supports fsync; those that do report a failed write here.
  if (!synced && errno != EINVAL && errno != ENOTSUP) fail("write");
  // Some file systems report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("write");
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("rename the temporary file to");
  leave_unfinished_file(std::exchange(slot_, -1));
  temporary_.clear();
  sync_directory(target_);
}

void OutputFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  leave_unfinished_file(std::exchange(slot_, -1));
}

void OutputFile::fail(const char* action) const { throw_system_error(path_, action, errno); }

}  // namespace torchvq::io
