// Bounds at which the gradient of the rotation trick departs from the paper's formula, and the
// weights computed from a token's dot products. Shared by all of its kernels.
#pragma once

#include <cmath>

#include "kernels/on_device.h"

namespace torchvq::kernels {

/// Largest ratio |code| / |token|. In training it lies within a few powers of two of 1; without a
/// bound a token near zero receives a gradient of 1e6 and more, which ends the run.
inline constexpr double kRotationGainBound = 100.0;

/// Norms below this have no usable direction.
inline constexpr double kRotationNormFloor = 1e-12;

/// Smallest 1 + cos(token, code) for which the plane of rotation is defined:
/// |e + q|^2 = 2 (1 + cos) = 1e-6. Below it, the gradient is reflected.
inline constexpr double kRotationCosineFloor = 0.5e-6;

/// dx = grad * g + token * x + code * c.
struct RotationWeights {
  double grad = 1.0, token = 0.0, code = 0.0;
};

/// From the dot products of token x, code c and gradient g.
TORCHVQ_ON_DEVICE inline RotationWeights rotation_weights(double xx, double cc, double xc,
                                                          double gx, double gc) {
  const double x_norm = std::sqrt(xx), c_norm = std::sqrt(cc);
  const double opening = 1.0 + xc / (x_norm * c_norm);
  const bool usable = x_norm >= kRotationNormFloor && c_norm >= kRotationNormFloor &&
                      std::isfinite(x_norm * c_norm);
  if (!usable) return {};
  const double ratio = c_norm / x_norm;
  const double gain = ratio < kRotationGainBound ? ratio : kRotationGainBound;
  const double g_e = gx / x_norm, g_q = gc / c_norm;
  // r is undefined for opposite vectors; the remaining I + 2 q e^T is a reflection that maps
  // e to q.
  const double k = opening >= kRotationCosineFloor ? (g_e + g_q) / opening : 0.0;
  return {gain, gain * (2.0 * g_q - k) / x_norm, -gain * k / c_norm};
}

}  // namespace torchvq::kernels
