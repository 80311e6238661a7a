// The generator of kernels/random.h in tensor operators: the same bits on any device, and `rng` is
// never read on the host. int64 arithmetic wraps around; logical shifts are masked arithmetic ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/random_purpose.h>

namespace torchvq::detail {

/// mix_bits() of every element of an int64 tensor.
at::Tensor mix_bits(const at::Tensor& values);

/// Key of (seed, step) = rng, as an int64 tensor of shape (1,).
at::Tensor random_key(const at::Tensor& rng, int64_t purpose, int64_t stream = 0);

/// random_bits(key, position) for int64 `positions` of any shape.
at::Tensor random_bits(const at::Tensor& key, const at::Tensor& positions);

/// uniform_from_bits() as float64.
at::Tensor uniform_from_bits(const at::Tensor& bits, int64_t precision);

/// log_of_uniform(): the natural logarithm of float64 numbers in (0, 1), the same bits on any
/// device.
at::Tensor log_of_uniform(const at::Tensor& u);

/// normal_from_bits() as float64.
at::Tensor normal_from_bits(const at::Tensor& radius_bits, const at::Tensor& angle_bits);

/// Throws unless rng is int64 of shape (2,).
void check_rng(const char* op, const at::Tensor& rng);

}  // namespace torchvq::detail
