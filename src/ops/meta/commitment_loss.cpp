#include "ops/commitment_loss.h"

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss(x, codes, mask);
  return detail::empty_loss(x, codes);
}

at::Tensor commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                    const at::Tensor& codes,
                                    const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss_backward(grad, x, codes, mask);
  return x.new_empty_symint(x.sym_sizes(), grad.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("commitment_loss", commitment_loss);
  m.impl("commitment_loss_backward", commitment_loss_backward);
}

}  // namespace torchvq
