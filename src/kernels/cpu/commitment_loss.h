// Factors and terms of the commitment loss, the mean of the squared differences of tokens and codes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace torchvq::kernels {

/// Number of rows whose sum is one term of the total. It depends on the feature size alone, so the
/// order of additions never depends on the number of threads.
constexpr int64_t rows_of_squared_differences(int64_t dim) { return 8192 / (dim + 1) + 1; }

/// The factor of token - code in the gradient of the mean of `count` squares. Halving and doubling
/// are exact, so the quotient is rounded once.
template <typename T>
constexpr T commitment_scale(T grad, int64_t count, bool masked) {
  return masked ? grad * 2 / static_cast<T>(std::max<int64_t>(count, 1))
                : grad / static_cast<T>(static_cast<double>(count) / 2);
}

}  // namespace torchvq::kernels
