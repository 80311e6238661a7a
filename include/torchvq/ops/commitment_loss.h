// The commitment loss: mean squared distance between tokens and their codes.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Mean of (x - codes)^2 over unmasked tokens, heads and features.
///
/// Formula      loss = sum_n m_n |x_n - c_n|^2 / (D * sum_n m_n);
///              dx_n = 2 m_n (x_n - c_n) / (D * sum_n m_n), dcodes = -dx
/// Paper        van den Oord et al. 2017, arXiv:1711.00937, equation 3
/// Parity       the reference without a mask, or with a mask, one head and no projection; its
///              masked loss compares with the raw input otherwise, and is NaN when every token is
///              masked
///
/// The same term serves both halves of the VQ loss: detach codes for the commitment of the encoder,
/// detach x for the codebook loss, and neither for the sum of both.
///
/// @param x      (H, N, D), floating point, any strides, in the space of the codes.
/// @param codes  (H, N, D), floating point; its dtype may differ from that of x.
/// @param mask   (H, N), bool; True marks a real token. Padding may hold anything. Default: all
///               real.
/// @return       (), float64 if an argument is float64, else float32.
///
/// Gradient     as above, in the dtype of each argument; differentiable any number of times.
/// Empty        no token, or none unmasked: 0 with zero gradient.
/// Non-finite   an unmasked NaN makes the loss NaN.
/// Precision    differences and sums in float64, rounded once.
/// Determinism  bitwise repeatable for any number of threads: fixed blocks, added in order.
/// Throws       c10::ValueError for bad shapes, c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                       const std::optional<at::Tensor>& mask = std::nullopt);

/// The backward of commitment_loss() to x: grad * 2 / count * (x - codes), (H, N, D), where count is the
/// number of unmasked values; 0 where masked. `grad` is a scalar () and has the dtype of the loss,
/// which is that of the result.
TORCHVQ_API at::Tensor commitment_loss_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codes,
    const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
