#pragma once

#include <cmath>
#include <limits>

namespace torchvq::detail {

/// The smallest T that is not below `value`.
template <typename T>
T round_up(long double value) {
  const auto rounded = static_cast<T>(value);
  return rounded < value ? std::nextafter(rounded, std::numeric_limits<T>::infinity()) : rounded;
}

}  // namespace torchvq::detail
