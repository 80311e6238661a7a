// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/residual_commitment_loss.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <torchvq/ops/commitment_loss.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                    at::TensorList codes, const std::optional<at::Tensor>& mask) {
  detail::check_residual_commitment_loss(x, inputs, codes, mask);
  std::vector<at::Tensor> losses;
  for (size_t level = 0; level < inputs.size(); ++level) {
    losses.push_back(ops::commitment_loss(inputs[level], codes[level], mask));
  }
  return at::stack(losses);
}

at::Tensor residual_commitment_loss_backward(const at::Tensor& grads, at::TensorList inputs,
                                             at::TensorList codes,
                                             const std::optional<at::Tensor>& mask) {
  detail::check_residual_commitment_loss_backward(grads, inputs, codes, mask);
  const auto dtype = grads.scalar_type();
  const auto scales =
      detail::commitment_gradient_scale(grads, inputs[0], mask.value_or(at::Tensor()));
  at::Tensor total;
  for (auto level = static_cast<int64_t>(inputs.size()) - 1; level >= 0; --level) {
    auto own = inputs[level].to(dtype) - codes[level].to(dtype);
    if (mask) own.masked_fill_(mask->logical_not().unsqueeze(-1), 0);
    own.mul_(scales[level]);
    total = total.defined() ? own.add_(total) : own;
  }
  return total;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("residual_commitment_loss", residual_commitment_loss);
  m.impl("residual_commitment_loss_backward", residual_commitment_loss_backward);
}

}  // namespace torchvq
