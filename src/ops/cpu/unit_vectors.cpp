#include "ops/unit_vectors.h"

#include <algorithm>
#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/cpu/token_rows.h"
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

template <typename T>
void write_gradients(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& units, T* to) {
  const auto kernel = kernels::token_rows_kernel<T>(kernels::cpu_level());
  const int64_t dim = x.size(-1), rows = x.numel() / dim;
  const auto *g = grad.const_data_ptr<T>(), *from = x.const_data_ptr<T>(),
             *u = units.const_data_ptr<T>();
  at::parallel_for(0, rows, 1 + 16384 / (dim + 1), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * dim; at < end * dim; at += dim) {
      const auto found = kernel.products(g + at, from + at, u + at, dim);
      const double norm = std::sqrt(found.xx);
      if (norm == 0) {
        std::fill_n(to + at, dim, T(0));
      } else {
        kernel.gradient({1 / norm, 0, -found.gc / norm, nullptr}, g + at, from + at, u + at, dim,
                        to + at);
      }
    }
  });
}

at::Tensor unit_vectors_backward(const at::Tensor& grad_, const at::Tensor& x_,
                                 const at::Tensor& units_) {
  detail::check_unit_vectors_backward(grad_, x_, units_);
  const auto dtype = units_.scalar_type();
  const auto grad = grad_.to(dtype).contiguous(), x = x_.to(dtype).contiguous(),
             units = units_.contiguous();
  auto result = at::empty(x.sizes(), units.options());
  if (x.numel() == 0) return result;
  AT_DISPATCH_FLOATING_TYPES(dtype, "unit_vectors_backward", [&] {
    write_gradients(grad, x, units, result.mutable_data_ptr<scalar_t>());
  });
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("unit_vectors", unit_vectors);
  m.impl("unit_vectors_backward", unit_vectors_backward);
}

}  // namespace torchvq
