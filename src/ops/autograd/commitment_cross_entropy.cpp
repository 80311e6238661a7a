#include <torchvq/ops/commitment_cross_entropy.h>

#include <torch/library.h>

#include "ops/autograd/precomputed_gradients.h"

namespace torchvq {
namespace {

at::Tensor commitment_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& targets, c10::string_view metric,
                                    const std::optional<at::Tensor>& mask) {
  return detail::loss_with_precomputed_gradients(
      "commitment_cross_entropy", x, codebook, [&](std::array<bool, 2> wanted) {
        return ops::commitment_cross_entropy_forward(x, codebook, targets, metric, mask, wanted);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("commitment_cross_entropy", commitment_cross_entropy);
}

}  // namespace torchvq
