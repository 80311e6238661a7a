// Largest magnitude of a row, and whether the row is finite, by one integer maximum over the bits:
// it vectorizes without flags, and no comparison can miss a NaN. Torch-free.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace torchvq::kernels {

template <typename T>
struct FloatBits;
template <>
struct FloatBits<float> {
  using Integer = int32_t;
};
template <>
struct FloatBits<double> {
  using Integer = int64_t;
};

struct RowMagnitude {
  double value;  // meaningful only where finite
  bool finite;
};

template <typename T>
RowMagnitude row_magnitude(const T* row, int64_t dim) {
  // Clang before 16 wants it.  NOLINTNEXTLINE(readability-redundant-typename)
  using Integer = typename FloatBits<T>::Integer;
  constexpr auto kMagnitude = std::numeric_limits<Integer>::max();
  Integer largest = 0;
  for (int64_t d = 0; d < dim; ++d) {
    largest = std::max<Integer>(largest, std::bit_cast<Integer>(row[d]) & kMagnitude);
  }
  const bool finite = largest < std::bit_cast<Integer>(std::numeric_limits<T>::infinity());
  return {static_cast<double>(std::bit_cast<T>(largest)), finite};
}

}  // namespace torchvq::kernels
