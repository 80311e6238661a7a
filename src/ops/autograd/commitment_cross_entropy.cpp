#include <torchvq/ops/commitment_cross_entropy.h>

#include <torch/library.h>

#include "ops/autograd/precomputed_gradients.h"

namespace torchvq {
namespace {

detail::LossAndGradients commitment_cross_entropy_forward(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& targets,
    c10::string_view metric, const std::optional<at::Tensor>& mask, std::array<bool, 2> given) {
  return detail::leaf_with_precomputed_gradients(
      "commitment_cross_entropy", x, codebook, given, [&](std::array<bool, 2> wanted) {
        return ops::commitment_cross_entropy_forward(x, codebook, targets, metric, mask, wanted);
      });
}

at::Tensor commitment_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                                    const at::Tensor& targets, c10::string_view metric,
                                    const std::optional<at::Tensor>& mask) {
  return std::get<0>(
      commitment_cross_entropy_forward(x, codebook, targets, metric, mask, {false, false}));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("commitment_cross_entropy", commitment_cross_entropy);
  m.impl("commitment_cross_entropy_forward", commitment_cross_entropy_forward);
}

}  // namespace torchvq
