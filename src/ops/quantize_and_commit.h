// Argument checks of quantize_and_commit and its backward, and its tokens in the shape that its
// component operators expect.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_quantize_and_commit(const at::Tensor& x, const at::Tensor& codebook,
                               std::string_view estimator, const std::optional<at::Tensor>& mask);

void check_quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes,
                                        const std::optional<at::Tensor>& mask);

/// x (B, *, D) as (1, N, D), in the dtype of the arithmetic.
at::Tensor wide_rows(const at::Tensor& x);

/// The same with zeros in place of padding, which may hold anything.
at::Tensor tokens_without_padding(const at::Tensor& x, const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
