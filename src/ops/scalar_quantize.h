#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "detail/precision.h"
#include "detail/scalar_levels.h"

namespace torchvq::detail {

/// Called by every kernel; returns the bound that the string names.
ScalarBound check_scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                  std::string_view bound);
ScalarBound check_scalar_quantize_backward(const at::Tensor& grad, const at::Tensor& x,
                                           at::IntArrayRef levels, std::string_view bound);

/// The gradient of x on any device; the CPU kernel falls back to it for float64.
at::Tensor scalar_quantize_backward_any(const at::Tensor& grad, const at::Tensor& x,
                                        at::IntArrayRef levels, std::string_view bound);

}  // namespace torchvq::detail
