#include "ops/rotation_trick.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "ops/cpu/token_gradients.h"

namespace torchvq {
namespace {

at::Tensor rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  detail::check_rotation_trick(x, codes);
  return codes.clone(at::MemoryFormat::Contiguous);
}

template <typename T>
at::Tensor backward_rows(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codes) {
  auto grad_x = at::empty(x.sizes(), x.options());
  const detail::TokenRows<T> rows{grad.const_data_ptr<T>(), x.const_data_ptr<T>(),
                                  codes.const_data_ptr<T>(), x.size(0) * x.size(1), x.size(2)};
  detail::write_token_gradients<T>(rows, /*rotates=*/true, nullptr, grad_x.mutable_data_ptr<T>());
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
