#include "ops/unit_vectors.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/unit_vector.h"

namespace torchvq {
namespace {

at::Tensor unit_vectors(const at::Tensor& x_) {
  detail::check_unit_vectors(x_);
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  auto units = at::empty(x.sizes(), x.options());
  const int64_t dim = x.size(-1);
  const int64_t rows = dim == 0 ? 0 : x.numel() / dim;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "unit_vectors", [&] {
    const auto* source = x.const_data_ptr<scalar_t>();
    auto* target = units.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, rows, 1 + 16384 / (dim + 1), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        kernels::unit_vector(source + row * dim, dim, target + row * dim);
      }
    });
  });
  return units;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("unit_vectors", unit_vectors); }

}  // namespace torchvq
