// Sums and quotients whose bits are the same on any device. A device's own sum adds in an order of
// its own, and CUDA divides by a number of the host by multiplying with its reciprocal.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>

namespace torchvq::detail {

/// Sum over the last axis (..., D) to (...), added in index order, every addition rounded by
/// itself. D launches, and a transposed copy: for sums that the contract defines in this order.
at::Tensor sum_in_order(const at::Tensor& terms);

/// values / divisor, rounded once.
inline at::Tensor divided(const at::Tensor& values, double divisor) {
  return at::div(values, at::full({}, divisor, values.options()));
}

}  // namespace torchvq::detail
