// Kernels and their emulation have different namespaces, so that one program can contain both.
#pragma once

#if defined(TORCHVQ_CUDA_SHIM)
#define TORCHVQ_CUDA_NAMESPACE emulated
#else
#define TORCHVQ_CUDA_NAMESPACE cuda
#endif

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Where a kernel runs. `stream` is a cudaStream_t.
struct Queue {
  int device = 0;
  void* stream = nullptr;
};

/// Number of blocks of a launch per task, and number of tasks (tasks.h).
struct Grid {
  unsigned blocks, tasks = 1;

  Grid(unsigned blocks_) : blocks(blocks_) {}
  Grid(unsigned blocks_, int tasks_) : blocks(blocks_), tasks(static_cast<unsigned>(tasks_)) {}
};

/// An error message with static storage, or nullptr for success.
using Error = const char*;

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
