// Argument checks of advance_rng_.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_advance_rng_(const at::Tensor& rng, const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
