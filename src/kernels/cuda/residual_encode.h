// Greedy encoding by residual levels on a CUDA device: nearest_code searches a level, and one
// launch subtracts its codes from the residuals and adds them to the sums, as
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
  T* left = nullptr;           ///< (rows, dim): the residual; NaN where masked
  T* quantized = nullptr;      ///< (rows, dim)
  int64_t* indices = nullptr;  ///< (rows, stride)
  int64_t stride = 0;          ///< number of levels in all
};

/// left = x and quantized = 0. Masked rows become NaN, which every search skips.
Error residual_begin(const ResidualRows<float>& rows, const Queue& queue);
Error residual_begin(const ResidualRows<double>& rows, const Queue& queue);

/// The result of searching a level.
template <typename T>
struct ResidualChoice {
  const T* codes = nullptr;        ///< (size, dim)
  const int64_t* found = nullptr;  ///< (rows), -1 for a row that is not finite
  int64_t level = 0;
};

/// Writes the level's indices; quantized += code and left -= code, both NaN for
/// a row that is not finite.
Error residual_take(const ResidualRows<float>& rows, const ResidualChoice<float>& choice,
                    const Queue& queue);
Error residual_take(const ResidualRows<double>& rows, const ResidualChoice<double>& choice,
                    const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
