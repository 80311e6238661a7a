// Unit vectors on a CUDA device, with the bits of kernels/unit_vector.h, and their gradient, with those of
// kernels/cpu/token_rows.h. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// x and units are (rows, dim), contiguous.
Error unit_vectors(const float* x, int64_t rows, int64_t dim, float* units, const Queue& queue);
Error unit_vectors(const double* x, int64_t rows, int64_t dim, double* units, const Queue& queue);

/// All are (rows, dim), contiguous.
template <typename T>
struct UnitGradientTask {
  const T* grad = nullptr;  ///< of the units
  const T* x = nullptr;
  const T* units = nullptr;
  T* grad_x = nullptr;  ///< out
  int64_t rows = 0, dim = 0;
};

Error unit_vectors_backward(const UnitGradientTask<float>& task, const Queue& queue);
Error unit_vectors_backward(const UnitGradientTask<double>& task, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
