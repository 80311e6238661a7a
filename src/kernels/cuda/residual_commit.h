// What each level of a residual stack leaves of the tokens, and the sum of the chosen codes, on a CUDA
// device, with the operations of the CPU. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostWalkedLevels = 32;  // per launch, whose arguments hold them

template <typename T>
struct WalkedLevel {
  const T* codebook = nullptr;  ///< (heads or 1, size, dim)
  int64_t size = 0;
  int64_t head_stride = 0;  ///< codes between heads: size, or 0 if heads share them
};

template <typename T>
struct ResidualCommitTask {
  const T* x = nullptr;              ///< (heads, tokens, dim), the input of the first level
  const int64_t* indices = nullptr;  ///< (heads, tokens, stride), of the first level
  int64_t heads = 0, tokens = 0, dim = 0;
  int64_t stride = 0;      ///< number of levels in all
  T* quantized = nullptr;  ///< (heads, tokens, dim), out
  bool continues = false;  ///< quantized already holds the sum of earlier levels
  T* residuals = nullptr;  ///< (level_count, heads, tokens, dim), out: what each level leaves
  WalkedLevel<T> levels[kMostWalkedLevels] = {};
  int level_count = 0;
};

/// An index outside [0, size) fails a device-side assertion.
Error residual_commit(const ResidualCommitTask<float>& task, const Queue& queue);
Error residual_commit(const ResidualCommitTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
