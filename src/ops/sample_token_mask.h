// Argument checks of sample_token_mask, called by every kernel.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_sample_token_mask(const at::Tensor& rng, const c10::SymInt& tokens, double fraction,
                             const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
