// The largest magnitude of a row by a maximum over bits, which cannot lose a NaN.
#pragma once

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// The result as float64, for a row read by a whole warp; not finite if an element is not.
template <typename T>
__device__ inline double largest_magnitude(const T* row, int64_t dim) {
  unsigned long long largest = 0;
  for (int64_t d = lane_of_warp(); d < dim; d += kWarp) {
    const double value = to_float(row[d]);
    const auto bits = static_cast<unsigned long long>(__double_as_longlong(value));
    largest = max(largest, bits & 0x7fffffffffffffffull);
  }
  return __longlong_as_double(static_cast<long long>(largest_of_warp(largest)));
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
