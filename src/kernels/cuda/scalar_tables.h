// What the scalar quantizers' kernels on a CUDA device compare with: small enough to travel with the
// launch, so that no table is copied from the host. Torch-free.
#pragma once

#include <cstdint>

namespace torchvq::kernels {

inline constexpr int kMostFeatures = 62;  // of at least two levels each: indices are int64
inline constexpr int kMostChanges = 384;  // of all different numbers of levels together

/// Feature j has levels[j] levels; level i holds from changes[first[j] + i - 1], included. Its code
/// is (i * factor - centre) / divisor: numerators are whole, so that one division rounds once.
template <typename T>
struct ScalarTables {
  int32_t features = 0;
  int32_t symmetric =
      0;  ///< factor 2, centre and divisor levels - 1; else factor 1, both levels / 2
  int16_t first[kMostFeatures] = {};
  int16_t levels[kMostFeatures] = {};
  T changes[kMostChanges] = {};
};

/// The slope of a code by its feature is gain * b'(x + shift), b being tanh or the clamp to [-1, 1].
struct ScalarSlopes {
  int32_t features = 0;
  int32_t tanh = 0;
  float gain[kMostFeatures] = {};
  float shift[kMostFeatures] = {};
};

}  // namespace torchvq::kernels
