// Argument checks of code_statistics, called by every kernel.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

using StatisticsTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

void check_code_statistics(const at::Tensor& x, const at::Tensor& indices,
                           const at::Tensor& exponents, const std::optional<at::Tensor>& mask);

/// Fixed-point words per element: float64 tokens need a second word for the bits below the first.
inline int64_t sum_words(at::ScalarType dtype) { return dtype == at::kDouble ? 2 : 1; }

}  // namespace torchvq::detail
