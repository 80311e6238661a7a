#include <torchvq/ops/codebook_diversity_loss.h>

#include <torch/library.h>

#include "detail/no_gradient.h"
#include "ops/autograd/precomputed_gradients.h"

namespace torchvq {
namespace {

detail::LossAndGradients codebook_diversity_loss_forward(
    const at::Tensor& x, const at::Tensor& codebook, double temperature, c10::string_view metric,
    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& totals,
    std::array<bool, 2> given) {
  return detail::leaf_with_precomputed_gradients(
      "codebook_diversity_loss", x, codebook, given, [&](std::array<bool, 2> wanted) {
        return ops::codebook_diversity_loss_forward(x, codebook, temperature, metric, mask, totals,
                                                    wanted);
      });
}

at::Tensor codebook_diversity_loss(const at::Tensor& x, const at::Tensor& codebook,
                                   double temperature, c10::string_view metric,
                                   const std::optional<at::Tensor>& mask,
                                   const std::optional<at::Tensor>& totals) {
  return std::get<0>(codebook_diversity_loss_forward(x, codebook, temperature, metric, mask, totals,
                                                     {false, false}));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("codebook_diversity_loss", codebook_diversity_loss);
  m.impl("codebook_diversity_loss_forward", codebook_diversity_loss_forward);
  m.impl("codebook_diversity_totals",
         torch::CppFunction::makeFromBoxedFunction<&detail::run_without_gradient>());
}

}  // namespace torchvq
