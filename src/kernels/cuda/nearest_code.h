// The nearest code of each row as docs/design/search.md defines it: screened in half precision on
// tensor cores, or in float32, and decided in float64 where the rounding bound leaves a doubt
// (docs/design/gpu.md). Nothing here waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Deliberate faults, so that tests can prove that they would detect them.
enum class SearchFault { kNone = 0, kNoBound = 1, kNoRunnerUp = 2 };

template <typename T>
struct NearestCodeTask {
  const T* x = nullptr;         ///< (tokens, dim)
  const T* codebook = nullptr;  ///< (size, dim)
  const T* bias = nullptr;      ///< (size,) or null
  int64_t tokens = 0, size = 0, dim = 0;
  bool cosine = false;
  int64_t* indices = nullptr;  ///< (tokens,), out: -1 for a row that is not finite
  SearchFault fault = SearchFault::kNone;
};

/// Bytes of workspace that nearest_code needs: O((tokens + size) * dim), in any device memory.
size_t nearest_code_workspace(const NearestCodeTask<float>& task, const Queue& queue);
size_t nearest_code_workspace(const NearestCodeTask<double>& task, const Queue& queue);

Error nearest_code(const NearestCodeTask<float>& task, void* workspace, const Queue& queue);
/// float64: computes all scores of all rows.
Error nearest_code(const NearestCodeTask<double>& task, void* workspace, const Queue& queue);

/// Optional outputs besides the index. An index of -1 becomes 0, with NaN as code and distance.
template <typename T>
struct FoundCodes {
  NearestCodeTask<T> task;
  T* codes = nullptr;      ///< (tokens, dim) or null
  T* distances = nullptr;  ///< (tokens,) or null
};

Error finish_nearest_code(const FoundCodes<float>& found, const Queue& queue);
Error finish_nearest_code(const FoundCodes<double>& found, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
