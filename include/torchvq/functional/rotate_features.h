// Rotation of features, for quantization along rotated axes.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// x R, or x R^T with `inverse`, in float32 (float64 for float64 x) under any autocast.
///
/// @param x         (*, D), floating point.
/// @param rotation  (D, D), R.
/// Gradient     to both.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor rotate_features(const at::Tensor& x, const at::Tensor& rotation,
                                       bool inverse = false);

/// A random orthogonal matrix (D, D), float32, from torch's generator: QR of a normal matrix.
TORCHVQ_API at::Tensor random_rotation(int64_t dim);

}  // namespace torchvq::functional
