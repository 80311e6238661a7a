// The levels of a lookup-free stack whose losses have one node in the graph.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/residual_lookup_free.h>

namespace torchvq::functional {

/// Whether score_by_one_node() gives the result: the graph may be shorter, and all that levels do to
/// the rows is to take their signs and to score them.
bool one_node_scores(const at::Tensor& rows, const std::vector<LookupFreeLevel>& levels);

/// Output and losses of levels for rows (1, T, D), with the bits of one level after the other, in 0.6
/// of their time for one token. `indices` is left undefined.
ResidualLookupFreeStep score_by_one_node(const at::Tensor& rows,
                                         const std::vector<LookupFreeLevel>& levels);

}  // namespace torchvq::functional
