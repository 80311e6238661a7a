// Tables of the scalar quantizers' kernels on a CUDA device, small enough to be launch arguments,
// so that nothing is copied from the host. Torch-free.
#pragma once

#include <cstdint>

namespace torchvq::kernels {

inline constexpr int kMostFeatures = 62;  // with at least two levels each: indices are int64
inline constexpr int kMostChanges = 384;  // of all different numbers of levels together

/// Feature j has levels[j] levels; level i begins at changes[first[j] + i - 1], inclusive. Its code
/// is (i * factor - centre) / divisor: numerators are integers, so one division rounds once.
template <typename T>
struct ScalarTables {
  int32_t features = 0;
  int32_t symmetric =
      0;  ///< factor 2, centre and divisor levels - 1; else factor 1, both levels / 2
  int16_t first[kMostFeatures] = {};
  int16_t levels[kMostFeatures] = {};
  T changes[kMostChanges] = {};
};

/// The derivative of a code with respect to its feature is gain * b'(x + shift), where b is tanh
/// or the clamp to [-1, 1].
struct ScalarSlopes {
  int32_t features = 0;
  int32_t tanh = 0;
  float gain[kMostFeatures] = {};
  float shift[kMostFeatures] = {};
};

}  // namespace torchvq::kernels
