#include "ops/token_moments.h"

#include <torch/library.h>

#include "detail/precision.h"

namespace torchvq {
namespace {

at::Tensor token_moments(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  detail::check_token_moments(x, mask);
  return x.new_empty_symint({x.sym_size(-1) * 4 + 1}, x.options().dtype(detail::sum_dtype(x)));
}

at::Tensor token_moments_backward(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& moments,
                                  const std::optional<at::Tensor>& mask) {
  detail::check_token_moments_backward(grad, x, moments, mask);
  return x.new_empty_symint(x.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("token_moments", token_moments);
  m.impl("token_moments_backward", token_moments_backward);
}

}  // namespace torchvq
