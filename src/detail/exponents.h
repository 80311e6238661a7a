// kernels/exponents.h in tensor operators: the same integers on any device.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// 2^exponents as float64, exact; `exponents` is an integer tensor within [-1022, 1023].
at::Tensor power_of_two(const at::Tensor& exponents);

/// exponent_of() of every element, int32; `magnitudes` is floating point, finite and >= 0.
at::Tensor exponent_of(const at::Tensor& magnitudes);

/// Whether the magnitude of each element of a float64 tensor can be added up in fixed point: it is
/// neither NaN nor too large.
at::Tensor can_be_summed(const at::Tensor& x);

/// Exponents clamped to [kMinExponent, kMaxExponent].
at::Tensor clamp_exponents(const at::Tensor& exponents);

}  // namespace torchvq::detail
