// Argument checks of commitment_cross_entropy.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "detail/metric.h"

namespace torchvq::detail {

Metric check_commitment_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                                      const at::Tensor& targets, c10::string_view metric,
                                      const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
