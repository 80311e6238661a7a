// Values that are computed once for each of the settings that a process uses.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace torchvq::detail {

template <typename Key, typename Value>
class KeptValues {
 public:
  /// The value of `key`; make() computes it at the first call. Safe under threads.
  template <typename Make>
  std::shared_ptr<const Value> get(const Key& key, const Make& make) {
    const std::scoped_lock lock(mutex_);
    // Bounds the memory of callers that try thousands of settings.
    if (known_.size() > kMost) known_.clear();
    auto& entry = known_[key];
    if (!entry) entry = std::make_shared<const Value>(make());
    return entry;
  }

 private:
  static constexpr size_t kMost = 64;

  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Value>> known_;
};

}  // namespace torchvq::detail
