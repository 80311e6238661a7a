#include "ops/residual_commitment_loss.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                    at::TensorList codes, const std::optional<at::Tensor>& mask) {
  detail::check_residual_commitment_loss(x, inputs, codes, mask);
  const auto options = x.options().dtype(detail::residual_loss_dtype(inputs, codes));
  return at::empty({static_cast<int64_t>(inputs.size())}, options);
}

at::Tensor residual_commitment_loss_backward(const at::Tensor& grads, at::TensorList inputs,
                                             at::TensorList codes,
                                             const std::optional<at::Tensor>& mask) {
  detail::check_residual_commitment_loss_backward(grads, inputs, codes, mask);
  return inputs[0].new_empty_symint(inputs[0].sym_sizes(), grads.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("residual_commitment_loss", residual_commitment_loss);
  m.impl("residual_commitment_loss_backward", residual_commitment_loss_backward);
}

}  // namespace torchvq
