// Any device: one loss with two weights, and plain ATen for the gradients.
#include "ops/paired_commitment_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <torchvq/ops/commitment_loss.h>

#include "detail/precision.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                  const OptionalTensor& mask, double to_x, double to_codes) {
  detail::check_paired_commitment_loss(x, codes, mask, to_x, to_codes);
  const auto distance = ops::commitment_loss(x, codes, mask);
  auto total = at::zeros({}, distance.options());
  // With weight 0 a term is left out, so that a NaN in it does not spread.
  if (to_codes != 0) total = total + distance * to_codes;
  if (to_x != 0) total = total + distance * to_x;
  return total;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> detail::paired_gradients_any(const at::Tensor& grad,
                                                                const at::Tensor& x,
                                                                const at::Tensor& codes,
                                                                const OptionalTensor& mask,
                                                                double to_x, double to_codes) {
  const auto dtype = value_dtype(x, codes);
  // Each term moves one side only; a second derivative must not depend on the other side.
  const auto scaled = [&](const at::Tensor& rows, const at::Tensor& target, double weight) {
    auto difference = rows.to(dtype) - target.to(dtype);
    if (weight == 0) return at::zeros_like(difference);
    if (mask) difference = difference.masked_fill(mask->logical_not().unsqueeze(-1), 0);
    return difference * commitment_gradient_scale(grad * weight, x, mask.value_or(at::Tensor()));
  };
  return {scaled(x, codes.detach(), to_x).to(x.scalar_type()),
          scaled(x.detach(), codes, to_codes).neg().to(codes.scalar_type())};
}

namespace {

std::tuple<at::Tensor, at::Tensor> paired_commitment_loss_backward(const at::Tensor& grad,
                                                                   const at::Tensor& x,
                                                                   const at::Tensor& codes,
                                                                   const OptionalTensor& mask,
                                                                   double to_x, double to_codes) {
  detail::check_paired_commitment_loss_backward(grad, x, codes, mask, to_x, to_codes);
  return detail::paired_gradients_any(grad, x, codes, mask, to_x, to_codes);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("paired_commitment_loss", paired_commitment_loss);
  m.impl("paired_commitment_loss_backward", paired_commitment_loss_backward);
}

}  // namespace torchvq
