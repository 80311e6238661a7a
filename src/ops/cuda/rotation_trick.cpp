// CUDA: the gradient, with the bits of the CPU. Forward is a copy, which needs
// no CUDA kernel of its own.
#include "ops/rotation_trick.h"

#include <ATen/ops/empty.h>

#include "detail/precision.h"
#include "kernels/cuda/rotation_trick.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

template <typename T>
at::Tensor cuda_rotation_rows(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codes,
                              const OnDevice& device) {
  auto grad_x = at::empty(x.sizes(), x.options());
  kernels::TORCHVQ_CUDA_NAMESPACE::RotationTrickTask<T> task;
  task.grad = grad.const_data_ptr<T>();
  task.x = x.const_data_ptr<T>();
  task.codes = codes.const_data_ptr<T>();
  task.grad_x = grad_x.mutable_data_ptr<T>();
  task.rows = x.size(0) * x.size(1), task.dim = x.size(2);
  check_launch("rotation_trick_backward",
               kernels::TORCHVQ_CUDA_NAMESPACE::rotation_trick_backward(task, device.queue()));
  return grad_x;
}

at::Tensor cuda_rotation_trick_backward(const at::Tensor& grad, const at::Tensor& x,
                                        const at::Tensor& codes) {
  detail::check_rotation_trick_backward(grad, x, codes);
  const OnDevice device(x);
  const auto dtype = detail::value_dtype(x, codes);
  const auto rows = [&](const at::Tensor& tensor) { return tensor.to(dtype).contiguous(); };
  const auto run = dtype == at::kDouble ? cuda_rotation_rows<double> : cuda_rotation_rows<float>;
  return run(rows(grad), rows(x), rows(codes), device).to(x.scalar_type());
}

}  // namespace

TORCHVQ_CUDA_KERNEL(rotation_trick_backward, cuda_rotation_trick_backward)

}  // namespace torchvq
