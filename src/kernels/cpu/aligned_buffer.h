// Memory aligned to cache lines, so that no vector load straddles two; not initialised.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace torchvq::kernels {

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size)
      : data_(allocate(sizeof(T) * static_cast<size_t>(size))), size_(size) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }
  int64_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlignment{64}, kPage{size_t{1} << 21};
  static constexpr size_t kManyPages = 4;

  struct Delete {
    std::align_val_t alignment = kAlignment;
    void operator()(T* data) const { ::operator delete(data, alignment); }
  };
  using Data = std::unique_ptr<T, Delete>;

  /// Large memory lies in large pages, where the system has them: touching it for the first time,
  /// and reading rows here and there, is several times cheaper.
  static Data allocate(size_t bytes) {
    const bool large = bytes >= kManyPages * static_cast<size_t>(kPage);
    const auto alignment = large ? kPage : kAlignment;
    Data data(static_cast<T*>(::operator new(bytes, alignment)), Delete{alignment});
#if defined(__linux__)
    if (large) madvise(data.get(), bytes, MADV_HUGEPAGE);  // failing changes nothing but speed
#endif
    return data;
  }

  Data data_;
  int64_t size_ = 0;
};

}  // namespace torchvq::kernels
