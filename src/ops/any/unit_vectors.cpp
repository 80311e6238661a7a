// Any device: plain ATen. Squares are added feature by feature, because the order of a reduction
// depends on the device and the contract requires the same order everywhere.
#include "ops/unit_vectors.h"

#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "detail/root.h"

namespace torchvq {
namespace {

at::Tensor unit_vectors(const at::Tensor& x) {
  detail::check_unit_vectors(x);
  const auto dtype = detail::compute_dtype(x);
  const auto wide = x.to(at::kDouble);
  const auto norm = detail::rounded_root(detail::sum_in_order(wide.mul(wide))).unsqueeze(-1);
  return wide.div(norm.masked_fill(norm.eq(0), 1)).to(dtype).contiguous();
}

at::Tensor unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& units) {
  detail::check_unit_vectors_backward(grad, x, units);
  const auto dtype = detail::sum_dtype(units);
  const auto norm = x.to(dtype).norm(2, -1, /*keepdim=*/true);
  const auto g = grad.to(dtype), u = units.to(dtype);
  const auto along = u.mul(g).sum(-1, /*keepdim=*/true);
  const auto result = g.sub(u.mul(along)).div(norm).masked_fill(norm.eq(0), 0);
  return result.to(units.scalar_type()).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("unit_vectors", unit_vectors);
  m.impl("unit_vectors_backward", unit_vectors_backward);
}

}  // namespace torchvq
