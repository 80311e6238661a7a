// What the kernels of kernels/cpu/scalar_quantize.h compare with, made from levels and bound.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "detail/scalar_levels.h"
#include "kernels/cpu/scalar_quantize.h"

namespace torchvq::detail {

inline constexpr int64_t kFeaturesPerTask = 8192;
inline constexpr int64_t kBlockValues = 2048;  // whose levels stay in the first-level cache

/// Numbers of the features (D), for kScalarRepeat rows.
std::vector<float> repeated(const std::vector<float>& values);

/// Whether the kernels serve: more levels than some dozens are found by bisection.
bool is_compared(at::IntArrayRef levels);

struct ScalarPatternsStorage {
  ScalarPatternsStorage(at::IntArrayRef levels, ScalarBound bound);

  kernels::ScalarPatterns view() const {
    return {period, changes.data(), most, factor, centre.data(), divisor.data()};
  }

  int64_t period, most;
  float factor = 1;
  std::vector<float> changes, centre, divisor;
};

/// The index of a row with these levels, or -1 if one of them is none: the row is not finite.
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
