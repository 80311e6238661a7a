// Argument checks of sampled_beam_search.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_sampled_beam_search(const at::Tensor& x, at::TensorList codebooks, at::TensorList rngs,
                               int64_t beam, double temperature, c10::string_view metric,
                               const std::optional<at::Tensor>& mask,
                               const std::optional<at::Tensor>& depth,
                               at::ArrayRef<double> weights);

}  // namespace torchvq::detail
