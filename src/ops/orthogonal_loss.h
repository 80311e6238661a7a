// Argument checks of orthogonal_loss.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_orthogonal_max_codes(std::optional<int64_t> max_codes);

void check_orthogonal_loss(const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
                           std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng);

}  // namespace torchvq::detail
