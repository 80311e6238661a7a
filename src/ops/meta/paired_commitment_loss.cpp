#include "ops/paired_commitment_loss.h"

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                  const std::optional<at::Tensor>& mask, double to_x,
                                  double to_codes) {
  detail::check_paired_commitment_loss(x, codes, mask, to_x, to_codes);
  return detail::empty_loss(x, codes);
}

std::tuple<at::Tensor, at::Tensor> paired_commitment_loss_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codes,
    const std::optional<at::Tensor>& mask, double to_x, double to_codes) {
  detail::check_paired_commitment_loss_backward(grad, x, codes, mask, to_x, to_codes);
  return {x.new_empty_symint(x.sym_sizes()), codes.new_empty_symint(codes.sym_sizes())};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("paired_commitment_loss", paired_commitment_loss);
  m.impl("paired_commitment_loss_backward", paired_commitment_loss_backward);
}

}  // namespace torchvq
