#include "ops/sign_entropy.h"

#include <tuple>

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> sign_entropy(const at::Tensor& x, double sharpness,
                                                const std::optional<at::Tensor>& mask,
                                                const std::optional<at::Tensor>& totals) {
  detail::check_sign_entropy(x, sharpness, mask, totals);
  return {detail::empty_loss(x, x), detail::empty_loss(x, x)};
}

at::Tensor sign_entropy_totals(const at::Tensor& x, double sharpness,
                               const std::optional<at::Tensor>& mask) {
  detail::check_sign_entropy(x, sharpness, mask);
  return x.new_empty_symint({x.sym_size(0), detail::sign_totals_size(x.size(2))},
                            x.options().dtype(detail::value_dtype(x, x)));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> sign_entropy_forward(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& totals, bool wanted) {
  detail::check_sign_entropy(x, sharpness, mask, totals);
  const auto dtype = detail::value_dtype(x, x);
  return {detail::empty_loss(x, x), detail::empty_loss(x, x),
          detail::LossGradients::room(x, wanted, dtype),
          detail::LossGradients::room(x, wanted, dtype)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("sign_entropy", sign_entropy);
  m.impl("sign_entropy_totals", sign_entropy_totals);
  m.impl("sign_entropy_forward", sign_entropy_forward);
}

}  // namespace torchvq
