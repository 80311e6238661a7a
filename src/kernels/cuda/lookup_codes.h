// Looks up codes by index on a CUDA device, as plain bytes of any type. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

struct LookupCodesTask {
  const void* codebook = nullptr;    ///< (heads, size, row_bytes)
  const int64_t* indices = nullptr;  ///< (heads, tokens), in [-1, size)
  void* codes = nullptr;             ///< (heads, tokens, row_bytes)
  int64_t heads = 0, tokens = 0, size = 0, row_bytes = 0;
};

/// An index outside [-1, size) fails a device-side assertion.
Error lookup_codes(const LookupCodesTask& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
