#include "ops/codebook_diversity_loss.h"

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor codebook_diversity_loss(const at::Tensor& x, const at::Tensor& codebook,
                                   double temperature, c10::string_view metric,
                                   const std::optional<at::Tensor>& mask,
                                   const std::optional<at::Tensor>& totals) {
  detail::check_codebook_diversity_loss(x, codebook, temperature, metric, mask, totals);
  return detail::empty_loss(x, codebook);
}

at::Tensor codebook_diversity_totals(const at::Tensor& x, const at::Tensor& codebook,
                                     double temperature, c10::string_view metric,
                                     const std::optional<at::Tensor>& mask) {
  detail::check_codebook_diversity_loss(x, codebook, temperature, metric, mask);
  return x.new_empty_symint({x.sym_size(0), codebook.sym_size(1) + 2},
                            x.options().dtype(detail::sum_dtype(x)));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> codebook_diversity_loss_forward(
    const at::Tensor& x, const at::Tensor& codebook, double temperature, c10::string_view metric,
    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& totals,
    std::array<bool, 2> wanted) {
  detail::check_codebook_diversity_loss(x, codebook, temperature, metric, mask, totals);
  const detail::LossGradients grads(x, codebook, wanted);
  return {detail::empty_loss(x, codebook), grads.x, grads.codebook};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("codebook_diversity_loss", codebook_diversity_loss);
  m.impl("codebook_diversity_totals", codebook_diversity_totals);
  m.impl("codebook_diversity_loss_forward", codebook_diversity_loss_forward);
}

}  // namespace torchvq
