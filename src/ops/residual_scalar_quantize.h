#pragma once

#include <string_view>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "detail/scalar_levels.h"

namespace torchvq::detail {

/// Called by every kernel; returns the bound that the string names.
ScalarBound check_residual_scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                           const at::Tensor& scales, std::string_view bound);
ScalarBound check_residual_scalar_quantize_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    at::IntArrayRef levels,
                                                    const at::Tensor& scales,
                                                    std::string_view bound);

/// For any device; the CPU kernels fall back to them for arguments that they do not support.
std::tuple<at::Tensor, at::Tensor> residual_scalar_quantize_any(const at::Tensor& x,
                                                                at::IntArrayRef levels,
                                                                const at::Tensor& scales,
                                                                std::string_view bound);
at::Tensor residual_scalar_quantize_backward_any(const at::Tensor& grad, const at::Tensor& x,
                                                 at::IntArrayRef levels, const at::Tensor& scales,
                                                 std::string_view bound);

}  // namespace torchvq::detail
