// A flag on a device that becomes true once. To read it makes the host wait, so that a module that
// has seen it true asks no more until somebody writes to it.
#pragma once

#include <cstdint>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace torchvq::detail {

/// Safe for several threads.
class SeenFlag {
 public:
  /// Whether `flag` (), bool, is true. `read(flag)` looks where it was not seen true as it is now:
  /// another tensor, other memory, or a write of torch's since then.
  template <typename Read>
  bool holds(const at::Tensor& flag, const Read& read) {
    // Tensors made in inference mode count no writes.
    if (flag.is_inference()) return read(flag);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto version = flag._version();
    if (seen_ && version == version_ && flag.storage().is_alias_of(memory_)) return true;
    seen_ = read(flag);
    version_ = version;
    memory_ = flag.storage();  // held, so that its address is nobody else's
    return seen_;
  }

 private:
  std::mutex mutex_;
  bool seen_ = false;
  int64_t version_ = 0;
  c10::Storage memory_;
};

}  // namespace torchvq::detail
