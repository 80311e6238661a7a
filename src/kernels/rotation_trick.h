// Where the gradient of the rotation trick leaves the paper's formula; shared by all of its
// kernels.
#pragma once

namespace torchvq::kernels {

/// Largest ratio |code| / |token|. In training it lies within a few powers of two of 1; without a
/// bound a token near zero receives a gradient of 1e6 and more, which ends the run.
inline constexpr double kRotationGainBound = 100.0;

/// Norms below this have no usable direction.
inline constexpr double kRotationNormFloor = 1e-12;

/// Smallest 1 + cos(token, code) with a plane to rotate in: |e + q|^2 = 2 (1 + cos) = 1e-6. Below,
/// reflect.
inline constexpr double kRotationCosineFloor = 0.5e-6;

}  // namespace torchvq::kernels
