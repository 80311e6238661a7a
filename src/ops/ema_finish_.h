// Argument checks of ema_finish_, called by every kernel.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Returns whether the metric is cosine.
bool check_ema_finish_(const at::Tensor& embed, const at::Tensor& cluster_size,
                       const at::Tensor& embed_avg, double decay, double eps,
                       std::string_view metric);

}  // namespace torchvq::detail
