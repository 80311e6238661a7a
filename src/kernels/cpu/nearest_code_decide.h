// Final decision of nearest_code for one row: exact scores of a few candidates,
// best first, ties by index.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/nearest_code_exact.h"
#include "kernels/cpu/nearest_code_scan.h"

namespace torchvq::kernels {

template <typename T>
struct NearestCodeTaskOf {
  const T* codebook = nullptr;  ///< (size, dim)
  const T* bias = nullptr;      ///< (size,) or null
  int64_t size = 0, dim = 0;
  bool cosine = false;
  int64_t k = 1;
  int64_t rows = 0;  ///< total number of rows to be searched

  /// The bias of a code as the contract adds it to the score.
  double bias_of(int64_t code) const { return bias ? bias[code] * (cosine ? 1.0 : 0.5) : 0.0; }
};

using NearestCodeTask = NearestCodeTaskOf<float>;

/// The functions of a table that read values of type T.
template <typename T, typename Table>
const auto& of_type(const Table& table) {
  if constexpr (std::is_same_v<T, double>) {
    return table.wide;
  } else {
    return table;
  }
}

template <typename T>
bool all_finite(const T* values, int64_t count) {
  return std::all_of(values, values + count, [](T value) { return std::isfinite(value); });
}

/// In float64, where it is finite if all values are float32 numbers.
template <typename T>
double squared_norm(const T* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

/// The largest magnitude of a finite bias.
template <typename T>
double largest_bias(const NearestCodeTaskOf<T>& task) {
  double largest = 0;
  for (int64_t k = 0; task.bias && k < task.size; ++k) {
    if (std::isfinite(task.bias[k]))
      largest = std::max(largest, std::abs(static_cast<double>(task.bias[k])));
  }
  return largest;
}

/// Not thread-safe: it keeps scratch memory between calls.
template <typename T>
class NearestCodeDecisionOf {
 public:
  NearestCodeDecisionOf(const NearestCodeTaskOf<T>& task, const NearestCodeExact& exact)
      : task_(task),
        exact_(of_type<T>(exact)),
        unit_(task.cosine ? (1 + kTogether) * task.dim : 0) {}

  /// Writes the k best of `candidates`, given in ascending order, for row x; if there are fewer
  /// than k, `excluded` codes follow in their order.
  void decide(const T* x, const std::vector<int32_t>& candidates,
              const std::vector<int32_t>& excluded, int64_t* indices);

 private:
  static constexpr size_t kTogether = 8;

  /// `rows` point to their unit vectors after it, in places from `first` on; only with the cosine metric.
  void make_unit(const T** rows, size_t count, size_t first);
  /// Scores candidates [begin, begin + kTogether), or up to the last one; returns their number.
  size_t score(const T* x, const std::vector<int32_t>& candidates, size_t begin, double* scores);

  const NearestCodeTaskOf<T>& task_;
  const NearestCodePairs<T>& exact_;
  AlignedBuffer<T> unit_;
  std::vector<std::pair<double, int32_t>> rivals_;  ///< (exact score, index)
};
using NearestCodeDecision = NearestCodeDecisionOf<float>;

/// The k-th largest of `count` values, -infinity if there are fewer; NaN is skipped.
class KthLargest {
 public:
  float find(const NearestCodeScan& scan, const float* values, int64_t count, int64_t k);

 private:
  std::vector<int32_t> places_;
  std::vector<float> heap_;
};

}  // namespace torchvq::kernels
