#include "ops/commitment_cross_entropy.h"

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor commitment_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& targets, c10::string_view metric,
                                    const std::optional<at::Tensor>& mask) {
  detail::check_commitment_cross_entropy(x, codebook, targets, metric, mask);
  return detail::empty_loss(x, codebook);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> commitment_cross_entropy_forward(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& targets,
    c10::string_view metric, const std::optional<at::Tensor>& mask, std::array<bool, 2> wanted) {
  detail::check_commitment_cross_entropy(x, codebook, targets, metric, mask);
  const detail::LossGradients grads(x, codebook, wanted);
  return {detail::empty_loss(x, codebook), grads.x, grads.codebook};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("commitment_cross_entropy", commitment_cross_entropy);
  m.impl("commitment_cross_entropy_forward", commitment_cross_entropy_forward);
}

}  // namespace torchvq
