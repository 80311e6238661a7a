// The common input and output of all residual stacks. The loop between them is in
// functional/residual_walk.h. A family (ResidualVQ in residual_levels.h; ResidualFSQ and
// ResidualLFQ by residual_stack.h) defines how a level chooses its codes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "modules/layout.h"

namespace torchvq::detail {

/// Tokens (B, N, D) of the input of a stack, projected, in float32 or float64. An empty
/// module means no projection.
at::Tensor enter_stack(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                       const Layout& layout, const torch::nn::Linear& project_in);

/// The output of a stack for the sum of its codes (B, N, D), in layout and dtype of its input.
at::Tensor leave_stack(const at::Tensor& total, const at::Tensor& x,
                       const std::optional<at::Tensor>& mask, const Layout& layout,
                       const torch::nn::Linear& project_out,
                       const std::optional<at::Tensor>& padding = std::nullopt);

/// Codes of one level (B, *, D) of (B, N, D), zeros for padding.
at::Tensor restore_codes(const at::Tensor& codes, const at::Tensor& x,
                         const std::optional<at::Tensor>& mask, const Layout& layout);

/// Stacks one tensor for each of `count` levels; dropped levels are filled with `missing`.
at::Tensor stack_levels(std::vector<at::Tensor> levels, int64_t count, int64_t missing,
                        int64_t dim = 0);

}  // namespace torchvq::detail
