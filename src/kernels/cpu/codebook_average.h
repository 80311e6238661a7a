// Rows of a codebook's moving average, in float64. Torch-free. src/detail/codebook_average.cpp does
// the same operations with tensor operators, in the same order.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/exponents.h"
#include "kernels/root.h"

namespace torchvq::kernels {

/// Number of fraction bits with which `count` numbers of the largest magnitude
/// can be added in an int64.
constexpr int32_t total_bits(int64_t count) {
  return std::min<int32_t>(52,
                           62 - static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(count))));
}

/// Sum in fixed point: independent of order, so every device gives the same bits. NaN
/// if a number is not finite.
template <typename T>
double order_free_total(const T* values, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, std::abs(static_cast<double>(values[i])));
  }
  const int32_t shift = total_bits(count) - exponent_of(largest);
  const double scale = power_of_two(shift);
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += std::llrint(static_cast<double>(values[i]) * scale);
  return static_cast<double>(total) * power_of_two(-shift);
}

/// Laplace smoothing of one cluster size. `smoothing_mass` = total + K * eps.
constexpr double smoothed_size(double size, double eps, double total, double smoothing_mass) {
  return (size + eps) / smoothing_mass * total;
}

constexpr double decayed(double average, double weight, double value) {
  return average + weight * (value - average);
}

/// embed = average / size, normalized if `unit`.
template <typename T>
void write_code(const T* average, double size, bool unit, int64_t dim, T* embed) {
  // Values beyond the range of the state are clamped.
  constexpr double kMost = std::numeric_limits<T>::max();
  for (int64_t d = 0; d < dim; ++d)
    embed[d] = static_cast<T>(std::clamp(static_cast<double>(average[d]) / size, -kMost, kMost));
  if (!unit) return;
  const double norm = norm_in_order(embed, dim);
  if (!(norm > 0)) return;
  for (int64_t d = 0; d < dim; ++d) embed[d] = static_cast<T>(static_cast<double>(embed[d]) / norm);
}

}  // namespace torchvq::kernels
