#include "ops/token_moment_loss.h"

#include <torch/library.h>

#include <torchvq/ops/token_moments.h>

#include "detail/precision.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Numbers = at::ArrayRef<double>;

detail::TokenMomentLossTensors token_moment_loss(const at::Tensor& x, Numbers targets,
                                                 Numbers weights, const OptionalTensor& mask) {
  detail::check_token_moment_loss(x, targets, weights, mask);
  const auto options = x.options().dtype(detail::value_dtype(x, x));
  const auto statistic = [&] { return x.new_empty_symint({x.sym_size(-1)}, options); };
  return {x.new_empty({}, options),   statistic(), statistic(), statistic(), statistic(),
          ops::token_moments(x, mask)};
}

at::Tensor token_moment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                      const at::Tensor& moments, Numbers targets, Numbers weights,
                                      const OptionalTensor& mask) {
  detail::check_token_moment_loss_backward(grad, x, moments, targets, weights, mask);
  return x.new_empty_symint(x.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("token_moment_loss", token_moment_loss);
  m.impl("token_moment_loss_backward", token_moment_loss_backward);
}

}  // namespace torchvq
