// The gradients of commitment_loss, shared with other autograd nodes.
#pragma once

#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <torchvq/ops/commitment_loss.h>

#include "detail/precision.h"
#include "ops/loss_gradients.h"

namespace torchvq::detail {

/// Gradients of x and, if wanted, of codes, in the dtypes of the loss and of codes.
/// `mask` may be undefined.
inline std::tuple<at::Tensor, at::Tensor> commitment_gradients(const at::Tensor& grad,
                                                               const at::Tensor& x,
                                                               const at::Tensor& codes,
                                                               const at::Tensor& mask,
                                                               bool wants_codes) {
  if (!at::GradMode::is_enabled() && !wants_codes) {
    const auto given_mask = mask.defined() ? std::optional(mask) : std::nullopt;
    return {ops::commitment_loss_backward(grad, x, codes, given_mask), at::Tensor()};
  }
  // Uses operators that autograd can differentiate again, none of them in place: grad or mask may be
  // mapped by torch.vmap where x is not.
  const auto dtype = value_dtype(x, codes);
  auto grad_x = x.to(dtype) - codes.to(dtype);
  if (mask.defined()) grad_x = grad_x.masked_fill(mask.logical_not().unsqueeze(-1), 0);
  grad_x = grad_x.mul(commitment_gradient_scale(grad, x, mask));
  return {grad_x, wants_codes ? grad_x.neg().to(codes.scalar_type()) : at::Tensor()};
}

}  // namespace torchvq::detail
