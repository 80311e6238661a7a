// The linear maps between the features of the input and those of the codes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

namespace torchvq::detail {

/// Applies a projection in its own dtype, whatever dtype the tokens have; autocast, when on,
/// decides itself (but leaves float64 as it is). Not by the layer's forward, which libtorch splits
/// into product and sum: half precision would be rounded twice, where Python rounds once.
at::Tensor apply_linear(const torch::nn::Linear& layer, const at::Tensor& tokens);

/// Tokens in the dtype of a weight, or in one from which autocast goes on.
at::Tensor for_weight(const at::Tensor& weight, const at::Tensor& tokens);

}  // namespace torchvq::detail
