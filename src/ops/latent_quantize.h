#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "detail/precision.h"

namespace torchvq::detail {

/// Called by every kernel.
void check_latent_quantize(const at::Tensor& x, const at::Tensor& values, at::IntArrayRef levels,
                           double commitment, double quantization,
                           const std::optional<at::Tensor>& mask);

void check_latent_quantize_backward(const at::Tensor& grad_codes, const at::Tensor& grad_loss,
                                    const at::Tensor& x, const at::Tensor& codes,
                                    const at::Tensor& indices, at::IntArrayRef levels);

/// The sum of levels.
int64_t count_values(at::IntArrayRef levels);

}  // namespace torchvq::detail
