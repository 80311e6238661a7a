// The levels of a stack of linear SimVQ as one node of the graph.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/residual_linear_quantize.h>

namespace torchvq::functional {

/// Whether quantize_by_one_node() gives the result: a gradient is recorded in a graph that may be
/// shorter, by an estimator of the library.
bool one_node_quantizes(const at::Tensor& rows, const std::vector<LinearLevel>& levels,
                        const std::string& estimator);

/// Codes and losses of levels for rows (1, T, D) and a mask (1, T), with the bits of one level after
/// the other. Codes are rows as well, indices (1, T, Q), and padding has indices like any token.
ResidualLinearStep quantize_by_one_node(const at::Tensor& rows,
                                        const std::vector<LinearLevel>& levels,
                                        const std::optional<at::Tensor>& mask,
                                        const std::string& estimator);

}  // namespace torchvq::functional
