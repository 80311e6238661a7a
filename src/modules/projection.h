// The maps between the features of the input and those of the codes.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>

#include <torchvq/modules/kept_buffers.h>

#include "modules/layout.h"

namespace torchvq::detail {

/// Applies a projection in its own dtype, whatever the dtype of the tokens; under autocast,
/// autocast chooses (but leaves float64 alone). An empty layer returns the tokens. Does not use the
/// layer's forward, which libtorch splits into product and sum: half precision would be rounded
/// twice, while Python rounds once.
at::Tensor apply_linear(const torch::nn::Linear& layer, const at::Tensor& tokens);

/// Applies a user's network to x in the dtype of its weights; integers are not converted.
at::Tensor apply_network(torch::nn::AnyModule& network, const at::Tensor& x);

/// The output of a forward for codes (B, N, D), projected, in layout and dtype of its input x;
/// masked tokens become `padding` (B, N, dim), or zeros.
at::Tensor restore_output(const at::Tensor& codes, const at::Tensor& x,
                          const std::optional<at::Tensor>& mask, const Layout& layout,
                          const torch::nn::Linear& project_out,
                          const std::optional<at::Tensor>& padding = std::nullopt);

/// The dtype in which codes are decoded: float64 if the projection or the rotation behind them is,
/// else float32. Either may be absent.
at::ScalarType decoding_dtype(const torch::nn::Linear& project_out,
                              const at::Tensor& rotation = {});

/// The projected codes (*, D) of indices (*, ...); zeros where all indices are -1. Without a
/// projection, in the half precision of the module, if it has one.
at::Tensor project_decoded(const torch::nn::Linear& project_out, const at::Tensor& codes,
                           const at::Tensor& indices, const HalfPrecision& module);

}  // namespace torchvq::detail
