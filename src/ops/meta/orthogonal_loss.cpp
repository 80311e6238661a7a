#include "ops/orthogonal_loss.h"

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor orthogonal_loss(const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
                           std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng) {
  detail::check_orthogonal_loss(codebook, indices, max_codes, rng);
  return detail::empty_loss(codebook, codebook);
}

std::tuple<at::Tensor, at::Tensor> orthogonal_loss_forward(const at::Tensor& codebook,
                                                           const std::optional<at::Tensor>& indices,
                                                           std::optional<int64_t> max_codes,
                                                           const std::optional<at::Tensor>& rng,
                                                           bool want_grad) {
  detail::check_orthogonal_loss(codebook, indices, max_codes, rng);
  const auto dtype = detail::value_dtype(codebook, codebook);
  return {detail::empty_loss(codebook, codebook),
          detail::LossGradients::room(codebook, want_grad, dtype)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("orthogonal_loss", orthogonal_loss);
  m.impl("orthogonal_loss_forward", orthogonal_loss_forward);
}

}  // namespace torchvq
