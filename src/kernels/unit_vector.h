// Unit vectors: the arithmetic shared by all CPU kernels with a cosine metric.
#pragma once

#include <cmath>
#include <cstdint>

namespace torchvq::kernels {

/// Length of a row: squares summed in float64 in index order. A row of float32 values has exact
/// squares, so fused and separate multiply-add agree.
template <typename T>
inline double row_norm(const T* row, int64_t dim) {
  double squares = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const auto value = static_cast<double>(row[d]);
    squares += value * value;
  }
  return std::sqrt(squares);
}

/// Writes row / |row| rounded to the output's type; a zero row stays zero.
template <typename T, typename U>
inline void unit_vector(const T* row, int64_t dim, U* unit) {
  const double norm = row_norm(row, dim);
  const double divisor = norm == 0 ? 1 : norm;
  for (int64_t d = 0; d < dim; ++d) {
    unit[d] = static_cast<U>(static_cast<double>(row[d]) / divisor);
  }
}

}  // namespace torchvq::kernels
