// The common parts of grouped residual stacks: splitting features and indices into groups, and
// joining the groups again.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

#include <torchvq/modules/grouped_residual_vq.h>

#include "detail/checks.h"
#include "detail/joined.h"
#include "modules/layout.h"

namespace torchvq::detail {

/// The layout of the common input of all groups.
template <typename Grouped>
Layout layout_of_groups(const Grouped& grouped, const char* owner) {
  return {.dim = grouped.options.dim(),
          .channel_first = grouped.rvqs[0]->options.is_channel_first(),
          .owner = owner};
}

/// The same for groups of ResidualVQ, whose layout has heads.
Layout layout_of(const GroupedResidualVQImpl& grouped);

/// Registers the stacks of a module: `make` makes that of each group.
template <typename Grouped, typename Make>
void fill_groups(Grouped& grouped, const Make& make) {
  auto list = grouped.register_module("rvqs", torch::nn::ModuleList());
  grouped.rvqs.clear();
  for (int64_t group = 0; group < grouped.options.groups(); ++group) {
    grouped.rvqs.push_back(make(group));
    list->push_back(grouped.rvqs.back());
  }
}

/// The axis of the features in the input of a layout.
inline int64_t feature_axis(const Layout& layout) { return layout.channel_first ? 1 : -1; }

/// The indices (G, B, *, q) of each group.
inline std::vector<at::Tensor> split_groups(const at::Tensor& indices, size_t groups,
                                            const Layout& layout) {
  check_defined(layout.owner.c_str(), "indices", indices);
  TORCH_CHECK_VALUE(indices.dim() > 0 && indices.size(0) == static_cast<int64_t>(groups),
                    layout.owner, ": expected indices to have ", groups,
                    " groups on the first axis, but got shape ", indices.sizes());
  return indices.unbind(0);
}

/// The results of `decode` for each group's stack and its part of the indices.
template <typename Stacks, typename Decode>
std::vector<at::Tensor> each_group(Stacks& stacks, const at::Tensor& indices, const Layout& layout,
                                   const Decode& decode) {
  const auto parts = split_groups(indices, stacks.size(), layout);
  std::vector<at::Tensor> decoded;
  for (size_t group = 0; group < stacks.size(); ++group)
    decoded.push_back(decode(stacks[group], parts[group]));
  return decoded;
}

/// Codes (G, Q, B, *, D) of indices (G, B, *, q), group after group.
template <typename Stacks>
at::Tensor codes_of_groups(Stacks& stacks, const at::Tensor& indices, const Layout& layout) {
  return stacked(each_group(stacks, indices, layout, [](auto& stack, const at::Tensor& own) {
    return stack->get_codes_from_indices(own);
  }));
}

/// The output of all groups for indices (G, B, *, q), with concatenated features.
template <typename Stacks>
at::Tensor output_of_groups(Stacks& stacks, const at::Tensor& indices, const Layout& layout) {
  const auto outputs = each_group(stacks, indices, layout, [](auto& stack, const at::Tensor& own) {
    return stack->get_output_from_indices(own);
  });
  // (B, dim) has no position axis next to the features.
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
