// All levels of residual_encode in one kernel: a block keeps what is left of a tile of rows in
// shared memory from the first level to the last (docs/design/gpu.md). Nothing here waits for the
// device. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/nearest_code.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

constexpr int kMostStackLevels = 32;

struct ResidualStackTask {
  const float* x = nullptr;    ///< (heads, tokens, dim)
  const bool* mask = nullptr;  ///< (heads, tokens), true for real tokens, or null
  int64_t heads = 0, tokens = 0, dim = 0;
  float* quantized = nullptr;  ///< (heads, tokens, dim), out; 0 where masked
  int64_t* indices = nullptr;  ///< (heads, tokens, stride), out; -1 where masked or not in use
  int64_t stride = 0;          ///< levels in all
  int levels = 0;              ///< in use
  const float* codebooks[kMostStackLevels] = {};  ///< (heads, size, dim) each; levels may share one
  int64_t sizes[kMostStackLevels] = {};
  bool cosine = false;
  SearchFault fault = SearchFault::kNone;
};

/// Rows of a block's tile: 64, 32 or 16; 0 where the kernel does not serve the task or its tile does
/// not fit the shared memory of a block. Of levels only their number is looked at.
int residual_stack_rows(const ResidualStackTask& task, const Queue& queue);

/// Bytes that residual_stack works in: O(heads * dim * codes). Any device memory does.
size_t residual_stack_workspace(const ResidualStackTask& task);

/// For tasks that have rows and levels. `rows` as residual_stack_rows() has said.
Error residual_stack(const ResidualStackTask& task, int rows, void* workspace, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
