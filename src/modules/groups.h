// What the grouped residual stacks do alike: each group's part of the indices, and groups put
// together again. The features are split over the groups.
#pragma once

#include <vector>

#include <c10/util/Exception.h>

#include "modules/joined.h"
#include "modules/layout.h"

namespace torchvq::detail {

/// The axis of the features in the input of a layout.
inline int64_t feature_axis(const Layout& layout) { return layout.channel_first ? 1 : -1; }

/// Of indices (G, B, *, q), those of each group.
inline std::vector<at::Tensor> split_groups(const at::Tensor& indices, size_t groups,
                                            const Layout& layout) {
  TORCH_CHECK_VALUE(indices.dim() > 0 && indices.size(0) == static_cast<int64_t>(groups),
                    layout.owner, ": expected indices to have ", groups,
                    " groups on the first axis, but got shape ", indices.sizes());
  return indices.unbind(0);
}

/// Codes (G, Q, B, *, D) of indices (G, B, *, q), a group's stack after the other.
template <typename Stacks>
at::Tensor codes_of_groups(Stacks& stacks, const at::Tensor& indices, const Layout& layout) {
  const auto parts = split_groups(indices, stacks.size(), layout);
  std::vector<at::Tensor> codes;
  for (size_t group = 0; group < stacks.size(); ++group)
    codes.push_back(stacks[group]->get_codes_from_indices(parts[group]));
  return stacked(codes);
}

/// The output of all groups for indices (G, B, *, q), features side by side.
template <typename Stacks>
at::Tensor output_of_groups(Stacks& stacks, const at::Tensor& indices, const Layout& layout) {
  const auto parts = split_groups(indices, stacks.size(), layout);
  std::vector<at::Tensor> outputs;
  for (size_t group = 0; group < stacks.size(); ++group)
    outputs.push_back(stacks[group]->get_output_from_indices(parts[group]));
  // (B, dim) has no position before or behind the features.
  return joined(outputs, outputs[0].dim() > 2 ? feature_axis(layout) : -1);
}

/// (G, Q, codebook_size, D).
template <typename Stacks>
at::Tensor codebooks_of_groups(const Stacks& stacks) {
  std::vector<at::Tensor> codebooks;
  for (const auto& stack : stacks) codebooks.push_back(stack->codebooks());
  return stacked(codebooks);
}

}  // namespace torchvq::detail
