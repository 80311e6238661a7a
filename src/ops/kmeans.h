// Argument checks of kmeans, called by every kernel.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Returns whether the metric is cosine.
bool check_kmeans(const at::Tensor& x, int64_t codebook_size, const at::Tensor& rng,
                  int64_t iterations, std::string_view metric,
                  const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
