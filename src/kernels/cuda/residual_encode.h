// The greedy walk of rows through residual levels on a CUDA device: nearest_code searches a level,
// and one launch moves its codes from what is left of the rows to their sums, as
// kernels/cpu/residual_encode.h does. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

template <typename T>
struct ResidualRows {
  const T* x = nullptr;        ///< (rows, dim)
  const bool* mask = nullptr;  ///< (rows), true for real tokens, or null
  int64_t rows = 0, dim = 0;
  T* left = nullptr;           ///< (rows, dim): what the next level searches; NaN where masked
  T* quantized = nullptr;      ///< (rows, dim)
  int64_t* indices = nullptr;  ///< (rows, stride)
  int64_t stride = 0;          ///< levels in all
};

/// left = x and quantized = 0. A masked row is NaN from here on, which no search looks at.
Error residual_begin(const ResidualRows<float>& rows, const Queue& queue);
Error residual_begin(const ResidualRows<double>& rows, const Queue& queue);

/// What a search has found in a level.
template <typename T>
struct ResidualChoice {
  const T* codes = nullptr;        ///< (size, dim)
  const int64_t* found = nullptr;  ///< (rows), -1 for a row that is not finite
  int64_t level = 0;
};

/// Indices of the level; quantized += code and left -= code, both NaN for a row that is not finite.
Error residual_take(const ResidualRows<float>& rows, const ResidualChoice<float>& choice,
                    const Queue& queue);
Error residual_take(const ResidualRows<double>& rows, const ResidualChoice<double>& choice,
                    const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
