#pragma once

#include <cmath>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Called by every kernel.
void check_scalar_noise(const at::Tensor& codes, at::IntArrayRef levels, const at::Tensor& rng,
                        double fraction);

/// Of 64 random bits, the upper ones give an element's displacement and the lower 32 decide
/// whether it is displaced.
inline constexpr int kNoisePrecision = 24;
inline constexpr int64_t kChoiceMask = 0xFFFFFFFF;

/// Elements whose lower bits are below this are displaced.
inline int64_t noise_threshold(double fraction) {
  return static_cast<int64_t>(std::llround(fraction * 4294967296.0));
}

/// Half the distance between two levels of each feature, as type T.
template <typename T>
std::vector<T> half_steps(at::IntArrayRef levels) {
  std::vector<T> steps;
  for (const int64_t count : levels) steps.push_back(T{1} / static_cast<T>(count - 1));
  return steps;
}

}  // namespace torchvq::detail
