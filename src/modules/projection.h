// The linear maps between the features of the input and those of the codes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

namespace torchvq::detail {

/// Applies a projection in its own dtype, whatever the dtype of the tokens; under autocast,
/// autocast chooses (but leaves float64 alone). Does not use the layer's forward, which libtorch
/// splits into product and sum: half precision would be rounded twice, while Python rounds once.
at::Tensor apply_linear(const torch::nn::Linear& layer, const at::Tensor& tokens);

/// Tokens in the dtype of a weight, or in a dtype that autocast can convert.
at::Tensor for_weight(const at::Tensor& weight, const at::Tensor& tokens);

}  // namespace torchvq::detail
