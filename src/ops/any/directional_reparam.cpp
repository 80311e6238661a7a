// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/directional_reparam.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include "detail/precision.h"

namespace torchvq {
namespace {

at::Tensor row_norms(const at::Tensor& rows) {
  return (rows * rows).sum(-1, /*keepdim=*/true).sqrt();
}

at::Tensor inverse_or_zero(const at::Tensor& values) {
  return values.reciprocal().masked_fill_(values.eq(0), 0);
}

at::Tensor directional_reparam(const at::Tensor& x_, const at::Tensor& codes_,
                               const at::Tensor& noise, double variance) {
  detail::check_directional_reparam(x_, codes_, noise, variance);
  const auto dtype = detail::sum_dtype(x_);
  const auto x = x_.to(dtype), d = codes_.to(dtype) - x;
  const auto v = d + noise.to(dtype) * std::sqrt(variance);
  const auto moved = x + v * (row_norms(d) * inverse_or_zero(row_norms(v)));
  return moved.to(x_.scalar_type()).contiguous();
}

std::tuple<at::Tensor, at::Tensor> directional_reparam_backward(const at::Tensor& grad_,
                                                                const at::Tensor& x,
                                                                const at::Tensor& codes,
                                                                const at::Tensor& noise,
                                                                double variance) {
  detail::check_directional_reparam_backward(grad_, x, codes, noise, variance);
  const auto dtype = detail::sum_dtype(x);
  const auto grad = grad_.to(dtype), d = codes.to(dtype) - x.to(dtype);
  const auto v = d + noise.to(dtype) * std::sqrt(variance);
  const auto projection = (grad * v).sum(-1, /*keepdim=*/true) * inverse_or_zero(row_norms(v));
  const auto grad_codes = d * (projection * inverse_or_zero(row_norms(d)));
  return {(grad - grad_codes).to(x.scalar_type()).contiguous(),
          grad_codes.to(codes.scalar_type()).contiguous()};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("directional_reparam", directional_reparam);
  m.impl("directional_reparam_backward", directional_reparam_backward);
}

}  // namespace torchvq
