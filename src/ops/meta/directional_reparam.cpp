#include "ops/directional_reparam.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor directional_reparam(const at::Tensor& x, const at::Tensor& codes,
                               const at::Tensor& noise, double variance) {
  detail::check_directional_reparam(x, codes, noise, variance);
  return x.new_empty_symint(x.sym_sizes());
}

std::tuple<at::Tensor, at::Tensor> directional_reparam_backward(const at::Tensor& grad,
                                                                const at::Tensor& x,
                                                                const at::Tensor& codes,
                                                                const at::Tensor& noise,
                                                                double variance) {
  detail::check_directional_reparam_backward(grad, x, codes, noise, variance);
  return {x.new_empty_symint(x.sym_sizes()), codes.new_empty_symint(codes.sym_sizes())};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("directional_reparam", directional_reparam);
  m.impl("directional_reparam_backward", directional_reparam_backward);
}

}  // namespace torchvq
