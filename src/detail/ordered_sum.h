// Sums and quotients with the same bits on any device. Device reductions add in an unspecified
// order, and CUDA divides by a host number by multiplying with its reciprocal.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>

namespace torchvq::detail {

/// Sum over the last axis (..., D) to (...), added in index order, with every addition rounded.
/// Costs D launches and a transposed copy: for sums whose order the contract defines.
at::Tensor sum_in_order(const at::Tensor& terms);

/// values / divisor, rounded once.
inline at::Tensor divided(const at::Tensor& values, double divisor) {
  return at::div(values, at::full({}, divisor, values.options()));
}

}  // namespace torchvq::detail
