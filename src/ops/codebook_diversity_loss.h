// Argument checks of codebook_diversity_loss.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "detail/metric.h"

namespace torchvq::detail {

Metric check_codebook_diversity_loss(const at::Tensor& x, const at::Tensor& codebook,
                                     double temperature, c10::string_view metric,
                                     const std::optional<at::Tensor>& mask,
                                     const std::optional<at::Tensor>& totals = std::nullopt);

}  // namespace torchvq::detail
