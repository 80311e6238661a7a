// Support for operators that consist of several launches: a workspace divided into arrays, and a
// sequence of launches that stops at the first error.
#pragma once

#include <cstddef>

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

inline int64_t rounded_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

/// Divides a workspace into arrays; without a workspace it only counts bytes.
class Cutter {
 public:
  explicit Cutter(void* workspace) : base_(static_cast<char*>(workspace)) {}

  template <typename T>
  void cut(T*& array, int64_t count) {
    array = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += static_cast<size_t>(rounded_up(count * static_cast<int64_t>(sizeof(T)), 256));
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

/// Launches one kernel after another until one fails.
class Steps {
 public:
  explicit Steps(const Queue& queue) : queue_(queue) {}

  template <typename Kernel, typename... Arguments>
  void run(Kernel kernel, Grid grid, unsigned threads, size_t shared,
           const Arguments&... arguments) {
    if (!error_) error_ = launch(kernel, queue_, grid, threads, shared, arguments...);
  }
  void add(Error error) {
    if (!error_) error_ = error;
  }
  Error error() const { return error_; }

 private:
  const Queue& queue_;
  Error error_ = nullptr;
};

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
