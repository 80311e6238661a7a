#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Called by every kernel.
void check_scalar_level_indices(const at::Tensor& indices, at::IntArrayRef levels);
void check_scalar_decode(const at::Tensor& indices, at::IntArrayRef levels, at::ScalarType dtype);
void check_scalar_code_indices(const at::Tensor& codes, at::IntArrayRef levels);
void check_scalar_indices(const at::Tensor& level_indices, at::IntArrayRef levels);

}  // namespace torchvq::detail
