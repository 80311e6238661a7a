// The common input and results per level of all residual stacks. The loop between them is in
// functional/residual_walk.h. A family (ResidualVQ in residual_levels.h; ResidualFSQ and
// ResidualLFQ by residual_stack.h) defines how a level chooses its codes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "modules/layout.h"

namespace torchvq::detail {

/// Tokens (B, N, D) of the input of a stack, projected, in float32 or float64. An empty
/// module means no projection.
at::Tensor enter_stack(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                       const Layout& layout, const torch::nn::Linear& project_in);

/// Codes of one level (B, *, D) of (B, N, D), zeros for padding.
at::Tensor restore_codes(const at::Tensor& codes, const at::Tensor& x,
                         const std::optional<at::Tensor>& mask, const Layout& layout);

/// Stacks one tensor for each of `count` levels; dropped levels are filled with `missing`.
at::Tensor stack_levels(std::vector<at::Tensor> levels, int64_t count, int64_t missing,
                        int64_t dim = 0);

/// The number q of levels of indices (*, q) to decode: `levels`, or with `fewer` at least 1. Throws
/// c10::ValueError for another number.
int64_t decoded_levels(const std::string& owner, const at::Tensor& indices, int64_t levels,
                       bool fewer);

}  // namespace torchvq::detail
