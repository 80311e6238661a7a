#include "ops/unit_vectors.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor unit_vectors(const at::Tensor& x) {
  detail::check_unit_vectors(x);
  return x.new_empty_symint(x.sym_sizes(), x.options().dtype(detail::compute_dtype(x)));
}

at::Tensor unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& units) {
  detail::check_unit_vectors_backward(grad, x, units);
  return units.new_empty_symint(units.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("unit_vectors", unit_vectors);
  m.impl("unit_vectors_backward", unit_vectors_backward);
}

}  // namespace torchvq
