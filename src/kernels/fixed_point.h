// Converts fixed-point sums back to floating point. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/exponents.h"
#include "kernels/on_device.h"

namespace torchvq::kernels {

/// Prevents double rounding: a float64 must not hide a tie of the following rounding to float32, so
/// beyond 2^53 the bits that float64 would drop are gathered into one sticky bit ("round to odd").
constexpr int64_t sticky(int64_t sum) {
  const bool large = sum >= (int64_t{1} << 53) || sum <= -(int64_t{1} << 53);
  const bool dropped = (sum & 0x7ff) != 0;
  return large && dropped ? (sum & ~int64_t{0x7ff}) | 0x800 : sum;
}

/// One word, ready to be rounded to T: that rounding is the only one.
template <typename T>
TORCHVQ_ON_DEVICE double decode_sum(int64_t sum, int32_t exponent) {
  const auto exact = static_cast<double>(sizeof(T) == sizeof(double) ? sum : sticky(sum));
  return exact * power_of_two(clamp_exponent(exponent) - kUnitBits);
}

/// Two words: sum + rest / 2^32, rounded once to float64. |sum| < 2^62.
TORCHVQ_ON_DEVICE inline double decode_sum_pair(int64_t sum, int64_t rest, int32_t exponent) {
  const int64_t whole = sum + (rest >> 32);
  const auto high = static_cast<double>(whole);
  const auto low = static_cast<double>(whole - static_cast<int64_t>(high)) +
                   static_cast<double>(rest & 0xffffffff) * 0x1p-32;
  return (high + low) * power_of_two(clamp_exponent(exponent) - kUnitBits);
}

}  // namespace torchvq::kernels
