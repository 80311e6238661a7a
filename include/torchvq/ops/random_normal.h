// Standard normal random numbers. Counter-based: no generator object, no hidden state.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/random_purpose.h>

namespace torchvq::ops {

/// Standard normal numbers (mean 0, variance 1, magnitude at most 8.6).
///
/// Formula      z[i] = sqrt(-2 log u1) cos(2 pi u2), u1 and u2 being the float64 uniforms 2i and 2i
///              + 1; i counts elements in row-major order
/// Paper        Box and Muller 1958, A note on the generation of random normal deviates
///
/// @param rng      (2,), int64: (seed, step). Its device is the device of the result.
/// @param purpose  the purpose of the numbers; different purposes give independent numbers.
/// @param size     shape of the result.
/// @param dtype    floating point; computed in float64 and rounded once. Default: float32.
/// @param stream   separates draws of one step and purpose, for example ranks or levels. Default:
///                 0.
/// @return         `size`, dtype.
///
/// Gradient     none.
/// Empty        a zero in `size` gives an empty result.
/// Determinism  the same bits on every device with IEEE float64 arithmetic: logarithm and cosine
///              are series of additions and multiplications. torch's generator is not used.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor random_normal(const at::Tensor& rng, RandomPurpose purpose,
                                     c10::SymIntArrayRef size,
                                     std::optional<at::ScalarType> dtype = std::nullopt,
                                     int64_t stream = 0);

}  // namespace torchvq::ops
