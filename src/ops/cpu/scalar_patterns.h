// Tables for the kernels of kernels/cpu/scalar_quantize.h, computed from levels and bound.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "detail/scalar_levels.h"
#include "kernels/cpu/scalar_quantize.h"

namespace torchvq::detail {

inline constexpr int64_t kFeaturesPerTask = 8192;
inline constexpr int64_t kBlockValues = 2048;  // whose levels fit the first-level cache

/// Whether the kernels support these levels; above a few dozen, bisection is
/// faster than comparisons.
bool is_compared(at::IntArrayRef levels);

struct ScalarPatternsStorage {
  ScalarPatternsStorage(at::IntArrayRef levels, ScalarBound bound);
  /// For features whose levels change at the given numbers; codes are the level numbers.
  explicit ScalarPatternsStorage(const std::vector<std::vector<float>>& of_features);

  kernels::ScalarPatterns view() const {
    return {period, changes.data(), most, factor, centre.data(), divisor.data()};
  }
  kernels::ScalarSlopes slopes() const { return {period, gain.data(), shift.data(), tanh}; }

  int64_t period, most;
  float factor = 1;
  bool tanh = false;
  std::vector<float> changes, centre, divisor, gain, shift;
  std::vector<int64_t> basis;

 private:
  void add_changes(const std::vector<std::vector<float>>& of_features);
};

/// The same, cached for the levels that a process uses: building it costs more than
/// quantizing some hundred tokens.
std::shared_ptr<const ScalarPatternsStorage> scalar_patterns(at::IntArrayRef levels,
                                                             ScalarBound bound);

/// The index of a row with these levels, or -1 if one of them is -1, because the row is not finite.
inline int64_t index_of(const int32_t* levels, const std::vector<int64_t>& basis) {
  int64_t sum = 0;
  int32_t signs = 0;
  for (size_t j = 0; j < basis.size(); ++j) {
    sum += levels[j] * basis[j];
    signs |= levels[j];
  }
  return signs < 0 ? -1 : sum;
}

}  // namespace torchvq::detail
