// Noise instead of rounding errors, for finite scalar quantization.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Moves a random part of the codes by up to half the distance between two levels.
///
/// Formula      codes[*, j] + (2 u - 1) / (levels[j] - 1) where v < fraction, u and v uniform in
///              (0, 1) and independent for every element
/// Paper        Parker et al. 2024, arXiv:2411.19842, section 2.2
///
/// @param codes     (*, D), float32 or float64, with symmetric levels, 2 / (levels[j] - 1) apart.
/// @param levels    as for scalar_quantize().
/// @param rng       (2,), int64: (seed, step), on the device of codes.
/// @param fraction  fraction of the elements that are moved, in [0, 1].
/// @param stream    separates draws of one step, for example levels of a stack. Default: 0.
/// @return          (*, D), dtype of codes.
///
/// Gradient     of codes: the identity.
/// Non-finite   NaN stays NaN.
/// Determinism  the same bits on every device and for every number of threads: element i in
///              row-major order takes number i of kernels/random.h.
/// Throws       c10::ValueError for bad shapes, levels and fractions, c10::TypeError for bad
///              dtypes.
TORCHVQ_API at::Tensor scalar_noise(const at::Tensor& codes, at::IntArrayRef levels,
                                    const at::Tensor& rng, double fraction, int64_t stream = 0);

}  // namespace torchvq::ops
