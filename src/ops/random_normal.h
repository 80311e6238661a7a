// Argument checks of random_normal, called by every kernel.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Returns the dtype of the result.
at::ScalarType check_random_normal(const at::Tensor& rng, c10::SymIntArrayRef size,
                                   std::optional<at::ScalarType> dtype);

}  // namespace torchvq::detail
