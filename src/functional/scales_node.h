// The scales of hierarchical_quantize() as one node of the graph.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/hierarchical_quantize.h>

namespace torchvq::functional {

/// The arguments of hierarchical_quantize() where all sizes are known.
struct ScalesOnCpu {
  at::Tensor rows;
  std::vector<int64_t> full;
  std::vector<at::Tensor> codebooks;
  ScaleConvolutions convolutions;
  HierarchicalQuantizeOptions options;
};

/// Whether quantize_scales_by_one_node() gives the result: the graph may be shorter, and there is a
/// map.
bool one_node_quantizes_scales(const ScalesOnCpu& scales);

/// hierarchical_quantize() with the bits of one scale after the other, in half of their time for few
/// tokens.
HierarchicalQuantizeOutput quantize_scales_by_one_node(ScalesOnCpu scales);

/// Sets what a step learns from: the tokens (B, L, D) and indices (B, L) of each scale.
void join_tokens(HierarchicalQuantizeOutput& output, const std::vector<at::Tensor>& tokens,
                 const std::vector<at::Tensor>& indices,
                 const HierarchicalQuantizeOptions& options);

/// The same from the codes (1, B * L, D) of each scale, as operators that have any number of
/// derivatives.
HierarchicalQuantizeOutput scales_of_codes(const ScalesOnCpu& scales,
                                           const std::vector<at::Tensor>& codes);

}  // namespace torchvq::functional
