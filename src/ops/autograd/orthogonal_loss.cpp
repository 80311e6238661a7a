#include <torchvq/ops/orthogonal_loss.h>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/autograd/precomputed_gradients.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> orthogonal_loss_forward(const at::Tensor& codebook,
                                                           const std::optional<at::Tensor>& indices,
                                                           std::optional<int64_t> max_codes,
                                                           const std::optional<at::Tensor>& rng,
                                                           bool want_grad) {
  const auto leaf = [&](std::array<bool, 2> wanted) {
    auto [loss, grad] = ops::orthogonal_loss_forward(codebook, indices, max_codes, rng, wanted[1]);
    return std::tuple{loss, at::empty({0}, codebook.options()), grad};
  };
  const auto [loss, none, grad] = detail::leaf_with_precomputed_gradients(
      "orthogonal_loss", std::nullopt, codebook, {false, want_grad}, leaf);
  return {loss, grad};
}

at::Tensor orthogonal_loss(const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
                           std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng) {
  return std::get<0>(orthogonal_loss_forward(codebook, indices, max_codes, rng, false));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("orthogonal_loss", orthogonal_loss);
  m.impl("orthogonal_loss_forward", orthogonal_loss_forward);
}

}  // namespace torchvq
