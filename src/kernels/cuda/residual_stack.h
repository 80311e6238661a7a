// All levels of residual_encode in one kernel: a block keeps the residuals of a tile of rows
// in shared memory from the first level to the last (docs/design/gpu.md). Nothing here waits
// for the device. Torch-free.
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
  int64_t stride = 0;          ///< number of levels in all
  int levels = 0;              ///< number of levels in use
  const float* codebooks[kMostStackLevels] = {};  ///< (heads, size, dim) each; levels may share one
  int64_t sizes[kMostStackLevels] = {};
  bool cosine = false;
  SearchFault fault = SearchFault::kNone;
};

/// Rows per tile: 64, 32 or 16; 0 if the kernel does not support the task or the tile does not fit
/// a block's shared memory. Of the levels, only their number matters.
int residual_stack_rows(const ResidualStackTask& task, const Queue& queue);

/// Bytes of workspace that residual_stack needs: O(heads * dim * codes), in any device memory.
size_t residual_stack_workspace(const ResidualStackTask& task);

/// For tasks with rows and levels. `rows` is the result of residual_stack_rows().
Error residual_stack(const ResidualStackTask& task, int rows, void* workspace, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
