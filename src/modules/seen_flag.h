// A flag on a device that becomes true once. Reading it makes the host wait, so once it was read as
// true, it is not read again until it is written.
#pragma once

#include <cstdint>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace torchvq::detail {

/// Thread-safe.
class SeenFlag {
 public:
  /// Whether `flag` (), bool, is true. Calls `read(flag)` unless this same flag was read as true
  /// before, that is, the same memory, without a write by torch since then.
  template <typename Read>
  bool holds(const at::Tensor& flag, const Read& read) {
    // Writes to tensors created in inference mode are not counted.
    if (flag.is_inference()) return read(flag);
    const std::scoped_lock lock(mutex_);
    const auto version = flag._version();
    if (seen_ && version == version_ && flag.storage().is_alias_of(memory_)) return true;
    seen_ = read(flag);
    version_ = version;
    memory_ = flag.storage();  // held, so that its address is not reused
    return seen_;
  }

 private:
  std::mutex mutex_;
  bool seen_ = false;
  int64_t version_ = 0;
  c10::Storage memory_;
};

}  // namespace torchvq::detail
