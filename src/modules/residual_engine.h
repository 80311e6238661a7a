// The engine of every residual stack, whatever its levels are: the way in, the one loop, the way
// out. A family (ResidualVQ in residual_levels.h; ResidualFSQ and ResidualLFQ by residual_stack.h)
// says how a level chooses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "modules/layout.h"

namespace torchvq::detail {

/// What a level hands to the loop.
struct Passed {
  at::Tensor codes;  ///< joins the sum
  at::Tensor taken;  ///< the next level no longer sees it
};

/// Tokens (B, N, D) of the input of a stack, projected, float32 or float64. An empty projection is
/// none.
at::Tensor enter_stack(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                       const Layout& layout, const torch::nn::Linear& project_in);

/// Level after level quantizes what the levels before have left; returns the sum of the codes.
///
/// @param choose  of a level's number, what is left for it, and the sum of the codes so far.
at::Tensor walk_levels(
    const at::Tensor& inputs, int64_t levels,
    const std::function<Passed(int64_t, const at::Tensor&, const at::Tensor&)>& choose);

/// The output of a stack for the sum of its codes (B, N, D), in layout and dtype of its input.
at::Tensor leave_stack(const at::Tensor& total, const at::Tensor& x,
                       const std::optional<at::Tensor>& mask, const Layout& layout,
                       const torch::nn::Linear& project_out,
                       const std::optional<at::Tensor>& padding = std::nullopt);

/// Codes of one level (B, *, D) of (B, N, D), zeros for padding.
at::Tensor restore_codes(const at::Tensor& codes, const at::Tensor& x,
                         const std::optional<at::Tensor>& mask, const Layout& layout);

/// One tensor for each of `count` levels, stacked; those that were dropped are filled with
/// `missing`.
at::Tensor stack_levels(std::vector<at::Tensor> levels, int64_t count, int64_t missing,
                        int64_t dim = 0);

}  // namespace torchvq::detail
