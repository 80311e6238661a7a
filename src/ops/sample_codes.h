// Argument checks of sample_codes.
#pragma once

#include <ATen/core/Tensor.h>

#include "detail/metric.h"

namespace torchvq::detail {

Metric check_sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                          double temperature, c10::string_view metric);

}  // namespace torchvq::detail
