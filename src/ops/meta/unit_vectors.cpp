#include "ops/unit_vectors.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor unit_vectors(const at::Tensor& x) {
  detail::check_unit_vectors(x);
  return x.new_empty_symint(x.sym_sizes(), x.options().dtype(detail::compute_dtype(x)));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("unit_vectors", unit_vectors); }

}  // namespace torchvq
