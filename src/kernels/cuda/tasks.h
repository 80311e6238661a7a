// Tasks of the same kind in one launch, such as the levels of a stack: each has its own blocks, in
// the second dimension of the grid. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostTasks = 16;

template <typename Task>
struct Tasks {
  Task of[kMostTasks] = {};
  int count = 0;

  Tasks() = default;
  explicit Tasks(const Task& task) { add(task); }

  /// Requires !full().
  void add(const Task& task) { of[count++] = task; }
  bool full() const { return count == kMostTasks; }

  /// The largest size(task).
  template <typename Size>
  int64_t most(const Size& size) const {
    int64_t largest = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t own = size(of[i]);
      largest = own > largest ? own : largest;
    }
    return largest;
  }
};

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
