// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/commitment_loss.h"

#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss(x, codes, mask);
  const auto sum_dtype = detail::sum_dtype(x), dtype = detail::value_dtype(x, codes);
  auto difference = x.to(sum_dtype) - codes.to(sum_dtype);
  if (!mask.has_value()) {
    const auto count = std::max<int64_t>(difference.numel(), 1);
    return detail::divided(difference.square_().sum(), static_cast<double>(count)).to(dtype);
  }
  difference.masked_fill_(mask->logical_not().unsqueeze(-1), 0);
  const auto count = (mask->sum() * x.size(2)).clamp_min(1);
  return (difference.square_().sum() / count).to(dtype);
}

at::Tensor commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                    const at::Tensor& codes,
                                    const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss_backward(grad, x, codes, mask);
  const auto dtype = grad.scalar_type();
  auto result = x.to(dtype) - codes.to(dtype);
  if (mask) result.masked_fill_(mask->logical_not().unsqueeze(-1), 0);
  result.mul_(detail::commitment_gradient_scale(grad, x, mask.value_or(at::Tensor())));
  return result.contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("commitment_loss", commitment_loss);
  m.impl("commitment_loss_backward", commitment_loss_backward);
}

}  // namespace torchvq
