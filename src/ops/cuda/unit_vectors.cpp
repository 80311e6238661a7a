// CUDA: norms are summed in index order, with the bits of the CPU.
#include "ops/unit_vectors.h"

#include <ATen/ops/empty.h>

#include "kernels/cuda/unit_vectors.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

template <typename T>
kernels::TORCHVQ_CUDA_NAMESPACE::Error fill_units(const at::Tensor& x, at::Tensor& units,
                                                  const OnDevice& device) {
  const int64_t dim = x.size(-1), rows = dim == 0 ? 0 : x.numel() / dim;
  return kernels::TORCHVQ_CUDA_NAMESPACE::unit_vectors(x.const_data_ptr<T>(), rows, dim,
                                                       units.mutable_data_ptr<T>(), device.queue());
}

at::Tensor cuda_unit_vectors(const at::Tensor& x_) {
  detail::check_unit_vectors(x_);
  const OnDevice device(x_);
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  auto units = at::empty(x.sizes(), x.options());
  const auto fill = x.scalar_type() == at::kDouble ? fill_units<double> : fill_units<float>;
  check_launch("unit_vectors", fill(x, units, device));
  return units;
}

template <typename T>
void write_unit_gradients(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& units,
                          at::Tensor& grad_x, const OnDevice& device) {
  kernels::TORCHVQ_CUDA_NAMESPACE::UnitGradientTask<T> task;
  task.grad = grad.const_data_ptr<T>();
  task.x = x.const_data_ptr<T>();
  task.units = units.const_data_ptr<T>();
  task.grad_x = grad_x.mutable_data_ptr<T>();
  task.dim = x.size(-1), task.rows = task.dim == 0 ? 0 : x.numel() / task.dim;
  check_launch("unit_vectors_backward",
               kernels::TORCHVQ_CUDA_NAMESPACE::unit_vectors_backward(task, device.queue()));
}

at::Tensor cuda_unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                      const at::Tensor& units) {
  detail::check_unit_vectors_backward(grad, x, units);
  const OnDevice device(x);
  const auto dtype = units.scalar_type();
  const auto rows = [&](const at::Tensor& tensor) { return tensor.to(dtype).contiguous(); };
  auto grad_x = at::empty(x.sizes(), units.options());
  const auto write =
      dtype == at::kDouble ? write_unit_gradients<double> : write_unit_gradients<float>;
  write(rows(grad), rows(x), rows(units), grad_x, device);
  return grad_x;
}

}  // namespace

TORCHVQ_CUDA_KERNEL(unit_vectors, cuda_unit_vectors)
TORCHVQ_CUDA_KERNEL(unit_vectors_backward, cuda_unit_vectors_backward)

}  // namespace torchvq
