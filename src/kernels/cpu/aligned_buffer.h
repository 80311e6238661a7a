// Memory aligned to cache lines, so that no vector load straddles two; not initialised.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace torchvq::kernels {

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size)
      : data_(static_cast<T*>(::operator new(sizeof(T) * static_cast<size_t>(size), kAlignment))),
        size_(size) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }
  int64_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(T* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<T, Delete> data_;
  int64_t size_ = 0;
};

}  // namespace torchvq::kernels
