// Any device: plain ATen, the reference for the CPU kernel. The algebra is in
// kernels/cpu/rotation_trick.h.
#include "ops/rotation_trick.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "kernels/rotation_trick.h"

namespace torchvq {
namespace {

at::Tensor rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  detail::check_rotation_trick(x, codes);
  return codes.clone(at::MemoryFormat::Contiguous);
}

at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum(-1, /*keepdim=*/true);
}

at::Tensor rotation_trick_backward(const at::Tensor& grad_, const at::Tensor& x_,
                                   const at::Tensor& codes_) {
  detail::check_rotation_trick_backward(grad_, x_, codes_);
  const auto dtype = detail::sum_dtype(x_);
  const auto grad = grad_.to(dtype), x = x_.to(dtype), codes = codes_.to(dtype);
  const auto x_norm = row_dots(x, x).sqrt(), c_norm = row_dots(codes, codes).sqrt();
  const auto opening = row_dots(x, codes) / (x_norm * c_norm) + 1;
  const auto usable = x_norm.ge(kernels::kRotationNormFloor)
                          .logical_and(c_norm.ge(kernels::kRotationNormFloor))
                          .logical_and((x_norm * c_norm).isfinite());
  const auto gain = (c_norm / x_norm).clamp_max(kernels::kRotationGainBound);
  const auto g_q = row_dots(grad, codes) / c_norm;
  const auto opposite = opening.lt(kernels::kRotationCosineFloor);
  const auto k = ((row_dots(grad, x) / x_norm + g_q) / opening).masked_fill(opposite, 0);
  const auto rotated = gain * (grad + x * ((g_q * 2 - k) / x_norm) - codes * (k / c_norm));
  return at::where(usable, rotated, grad).to(x_.scalar_type()).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("rotation_trick", rotation_trick);
  m.impl("rotation_trick_backward", rotation_trick_backward);
}

}  // namespace torchvq
