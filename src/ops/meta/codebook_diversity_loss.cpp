#include "ops/codebook_diversity_loss.h"

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor codebook_diversity_loss(const at::Tensor& x, const at::Tensor& codebook,
                                   double temperature, c10::string_view metric,
                                   const std::optional<at::Tensor>& mask) {
  detail::check_codebook_diversity_loss(x, codebook, temperature, metric, mask);
  return detail::empty_loss(x, codebook);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> codebook_diversity_loss_forward(
    const at::Tensor& x, const at::Tensor& codebook, double temperature, c10::string_view metric,
    const std::optional<at::Tensor>& mask, std::array<bool, 2> wanted) {
  detail::check_codebook_diversity_loss(x, codebook, temperature, metric, mask);
  const detail::LossGradients grads(x, codebook, wanted);
  return {detail::empty_loss(x, codebook), grads.x, grads.codebook};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("codebook_diversity_loss", codebook_diversity_loss);
  m.impl("codebook_diversity_loss_forward", codebook_diversity_loss_forward);
}

}  // namespace torchvq
