// Argument checks of quantize_and_commit and its backward, and its tokens in the shape that its
// component operators expect.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_quantize_and_commit(const at::Tensor& x, const at::Tensor& codebook,
                               std::string_view estimator);

void check_quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes);

/// x (B, *, D) as (1, N, D), in the dtype of the arithmetic.
at::Tensor wide_rows(const at::Tensor& x);

}  // namespace torchvq::detail
