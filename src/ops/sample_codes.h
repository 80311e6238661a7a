// Argument checks of sample_codes.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "detail/metric.h"

namespace torchvq::detail {

/// Below it the draws are the best scores, as at temperature 0: quotients by it could overflow.
constexpr double kColdestDraw = 1e-290;

/// A code that lags this far behind the best one, in units of the temperature, counts by the
/// logarithm of its chance, which is negative: the chance itself could be no normal number.
constexpr double kFarLag = -700;

Metric check_sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                          double temperature, c10::string_view metric, std::optional<int64_t> topk);

}  // namespace torchvq::detail
