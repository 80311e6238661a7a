// Random numbers, uniform or normal. Counter-based: no generator object, no hidden state.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/random_purpose.h>

namespace torchvq {

enum class Distribution {
  kUniform,  ///< inside (0, 1), never 0 or 1, so that log(u) and log(1 - u) are finite
  kNormal,   ///< mean 0, variance 1, magnitude at most 8.6
};

namespace ops {

/// Random numbers of a distribution, as a function of seed, step, purpose, stream and position.
///
/// Formula      bits[i] = mix(key + i * gamma); i counts elements in row-major order.
///              uniform: u[i] = (top p bits of bits[i], made odd) / 2^p, with p = 24 for float32, 53
///              for float64, 11 for float16, 8 for bfloat16.
///              normal: z[i] = sqrt(-2 log u1) cos(2 pi u2), u1 and u2 being the float64 uniforms
///              2i and 2i + 1, computed in float64 and rounded once
/// Paper        Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators; Box and
///              Muller 1958, A note on the generation of random normal deviates
///
/// @param rng           (2,), int64: (seed, step). Its device is the device of the result.
/// @param purpose       the purpose of the numbers; different purposes give independent numbers.
/// @param distribution  uniform or normal; the operator has `normal` as a bool.
/// @param size          shape of the result.
/// @param dtype         floating point. Default: float32.
/// @param stream        separates draws of one step and purpose, for example ranks or levels.
///                      Default: 0.
/// @return              `size`, dtype.
///
/// Gradient     none.
/// Empty        a zero in `size` gives an empty result.
/// Determinism  the same bits for every number of threads and on every device (normal numbers: with
///              IEEE float64 arithmetic, as logarithm and cosine are series of additions and
///              multiplications); torch's generator is not used.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor random_numbers(const at::Tensor& rng, RandomPurpose purpose,
                                      Distribution distribution, c10::SymIntArrayRef size,
                                      std::optional<at::ScalarType> dtype = std::nullopt,
                                      int64_t stream = 0);

}  // namespace ops

}  // namespace torchvq
