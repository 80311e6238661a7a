// Argument checks of gumbel_straight_through and its backward.
#pragma once

#include <ATen/core/Tensor.h>

#include "detail/metric.h"

namespace torchvq::detail {

Metric check_gumbel_straight_through(const at::Tensor& x, const at::Tensor& codebook,
                                     const at::Tensor& indices, double temperature,
                                     c10::string_view metric);
Metric check_gumbel_straight_through_backward(const at::Tensor& grad, const at::Tensor& x,
                                              const at::Tensor& codebook, const at::Tensor& indices,
                                              double temperature, c10::string_view metric);

}  // namespace torchvq::detail
