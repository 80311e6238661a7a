// Any device: plain ATen. Squares are added feature by feature, because the order of a reduction is
// the device's own and the contract is one order for all.
#include "ops/unit_vectors.h"

#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor unit_vectors(const at::Tensor& x) {
  detail::check_unit_vectors(x);
  const auto dtype = detail::compute_dtype(x);
  const auto wide = x.to(at::kDouble);
  auto squares = at::zeros(wide.sizes().slice(0, wide.dim() - 1), wide.options());
  for (int64_t d = 0; d < wide.size(-1); ++d) {
    const auto column = wide.select(-1, d);
    squares.add_(column.mul(column));
  }
  const auto norm = squares.sqrt_().unsqueeze(-1);
  return wide.div(norm.masked_fill(norm.eq(0), 1)).to(dtype).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("unit_vectors", unit_vectors); }

}  // namespace torchvq
