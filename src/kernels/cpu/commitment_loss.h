// Sum of squared differences over a range of tokens, in float64. Contiguous rows; memory-bound.
#pragma once

#include <cstdint>

#include "kernels/cpu/lanes.h"

namespace torchvq::kernels {

/// Number of rows whose sum is one term of the total. It depends on the feature size alone, so the
/// order of additions never depends on the number of threads.
constexpr int64_t rows_of_squared_differences(int64_t dim) { return 8192 / (dim + 1) + 1; }

/// `mask` may be null. Masked rows are not read.
template <typename T>
double squared_differences(const T* x, const T* codes, const bool* mask, int64_t begin, int64_t end,
                           int64_t dim) {
  LaneSum sum;
  for (int64_t row = begin; row < end; ++row) {
    if (mask != nullptr && !mask[row]) continue;
    const T* a = x + row * dim;
    const T* b = codes + row * dim;
    for_each_lane(dim, [&](int64_t i, int64_t l) {
      const double difference = static_cast<double>(a[i]) - b[i];
      sum.lane[l] += difference * difference;
    });
  }
  return sum.total();
}

}  // namespace torchvq::kernels
