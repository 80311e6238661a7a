// What each level of a residual stack is given and what it chooses, on a CUDA device, by the
// operations of the CPU. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostWalkedLevels = 32;  // of a launch, which takes all of them along

template <typename T>
struct WalkedLevel {
  const T* codebook = nullptr;  ///< (heads or 1, size, dim)
  int64_t size = 0;
  int64_t head_stride = 0;  ///< codes from head to head: size, or 0 where heads share them
  T* inputs = nullptr;      ///< (heads, tokens, dim), out: what the level is given
  T* codes = nullptr;       ///< (heads, tokens, dim), out: what it chooses
};

template <typename T>
struct ResidualLookupTask {
  const T* x = nullptr;              ///< (heads, tokens, dim); may be the inputs of the first level
  const int64_t* indices = nullptr;  ///< (heads, tokens, stride), of the first level
  int64_t heads = 0, tokens = 0, dim = 0;
  int64_t stride = 0;      ///< levels in all
  T* quantized = nullptr;  ///< (heads, tokens, dim), out
  bool continues = false;  ///< quantized holds the sum of levels before
  T* left = nullptr;  ///< (heads, tokens, dim), out: what a level after these is given; or null
  WalkedLevel<T> levels[kMostWalkedLevels] = {};
  int level_count = 0;
};

/// An index outside [0, size) stops the device with an error.
Error residual_lookup(const ResidualLookupTask<float>& task, const Queue& queue);
Error residual_lookup(const ResidualLookupTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
