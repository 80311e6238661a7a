// Tokens that hold a NaN or an infinity have no nearest code.
#pragma once

#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/where.h>

namespace torchvq::detail {

/// The codes (..., D) of tokens x (..., D), NaN where the token is not finite, so that a gradient
/// scaler detects it regardless of how the code was found.
inline at::Tensor mark_non_finite(const at::Tensor& codes, const at::Tensor& x) {
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  // The largest magnitude of a row, or NaN if the row contains one: two passes,
  // while isfinite() takes six.
  const auto largest = x.detach().abs().amax(-1, /*keepdim=*/true);
  return at::where(largest.lt(kInfinity), codes, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace torchvq::detail
