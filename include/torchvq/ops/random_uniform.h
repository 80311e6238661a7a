// Uniform random numbers inside (0, 1). Counter-based: no generator object, no hidden state.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/random_purpose.h>

namespace torchvq::ops {

/// Uniform numbers inside (0, 1), never 0 or 1, so that log(u) and log(1 - u) are finite.
///
/// Formula      u[i] = (top bits of mix(key + i * gamma), made odd) / 2^p, with p = 24 bits for
///              float32, 53 for float64, 11 for float16, 8 for bfloat16; i counts elements in
///              row-major order
/// Paper        Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators
///
/// @param rng      (2,), int64: (seed, step). Its device is the device of the result.
/// @param purpose  the purpose of the numbers; different purposes give independent numbers.
/// @param size     shape of the result.
/// @param dtype    floating point. Default: float32.
/// @param stream   separates draws of one step and purpose, for example ranks or levels. Default:
///                 0.
/// @return         `size`, dtype.
///
/// Gradient     none.
/// Empty        a zero in `size` gives an empty result.
/// Determinism  the same bits on every device and for every number of threads; torch's generator is
///              not used.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor random_uniform(const at::Tensor& rng, RandomPurpose purpose,
                                      c10::SymIntArrayRef size,
                                      std::optional<at::ScalarType> dtype = std::nullopt,
                                      int64_t stream = 0);

}  // namespace torchvq::ops
