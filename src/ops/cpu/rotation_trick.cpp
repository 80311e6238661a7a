#include "ops/rotation_trick.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "kernels/cpu/rotation_trick.h"

namespace torchvq {
namespace {

at::Tensor rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  detail::check_rotation_trick(x, codes);
  return codes.clone(at::MemoryFormat::Contiguous);
}

template <typename T>
at::Tensor backward_rows(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codes) {
  auto grad_x = at::empty(x.sizes(), x.options());
  const int64_t rows = x.size(0) * x.size(1), dim = x.size(2);
  const auto* g = grad.const_data_ptr<T>();
  const auto* from = x.const_data_ptr<T>();
  const auto* to = codes.const_data_ptr<T>();
  auto* result = grad_x.mutable_data_ptr<T>();
  at::parallel_for(0, rows, 16384 / (dim + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * dim;
      kernels::rotation_trick_backward_row(g + at, from + at, to + at, result + at, dim);
    }
  });
  return grad_x;
}

at::Tensor rotation_trick_backward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& codes) {
  detail::check_rotation_trick_backward(grad, x, codes);
  const auto dtype = detail::value_dtype(x, codes);
  const auto rows = [&](const at::Tensor& tensor) { return tensor.to(dtype).contiguous(); };
  const auto grad_x = dtype == at::kDouble ? backward_rows<double>(rows(grad), rows(x), rows(codes))
                                           : backward_rows<float>(rows(grad), rows(x), rows(codes));
  return grad_x.to(x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("rotation_trick", rotation_trick);
  m.impl("rotation_trick_backward", rotation_trick_backward);
}

}  // namespace torchvq
