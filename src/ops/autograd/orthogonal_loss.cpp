#include <torchvq/ops/orthogonal_loss.h>

#include <torch/library.h>

#include "ops/autograd/precomputed_gradients.h"

namespace torchvq {
namespace {

at::Tensor orthogonal_loss(const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
                           std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng) {
  const auto leaf = [&](std::array<bool, 2> wanted) {
    const auto [loss, grad] =
        ops::orthogonal_loss_forward(codebook, indices, max_codes, rng, wanted[1]);
    return std::tuple{loss, at::Tensor(), grad};
  };
  return detail::loss_with_precomputed_gradients("orthogonal_loss", std::nullopt, codebook, leaf);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("orthogonal_loss", orthogonal_loss); }

}  // namespace torchvq
