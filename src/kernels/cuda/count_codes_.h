// Number of tokens of each code on a CUDA device, for many levels at once. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostCountedLevels = 32;  // per launch, whose arguments hold them

struct CountedLevel {
  int64_t* counts = nullptr;         ///< (heads, size), out
  const int64_t* indices = nullptr;  ///< (heads, tokens), in [-1, size); null where tokens is 0
  int64_t heads = 0, size = 0, tokens = 0;
};

struct CountCodesTask {
  CountedLevel levels[kMostCountedLevels] = {};
  int level_count = 0;
};

/// An index outside [-1, size) fails a device-side assertion.
Error count_codes_(const CountCodesTask& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
