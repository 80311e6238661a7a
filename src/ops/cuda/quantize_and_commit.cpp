// CUDA: the gradient in two launches, that of the estimator and that of the commitment loss, which adds both.
#include "ops/quantize_and_commit.h"

#include <ATen/ops/empty.h>

#include "detail/residual_arguments.h"
#include "detail/transposed.h"
#include "kernels/cuda/commitment_loss.h"
#include "kernels/cuda/rotation_trick.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

/// All contiguous, of type T.
template <typename T>
at::Tensor cuda_gradient_of_tokens(const at::Tensor& grad_quantized,
                                   const at::Tensor& grad_commitment, const at::Tensor& rows,
                                   const at::Tensor& codes, bool rotates) {
  constexpr auto op = "quantize_and_commit_backward";
  const OnDevice device(rows);
  auto result = at::empty(rows.sizes(), rows.options());
  const auto* estimated = grad_quantized.const_data_ptr<T>();
  if (rotates) {
    kernels::TORCHVQ_CUDA_NAMESPACE::RotationTrickTask<T> task;
    task.grad = estimated;
    task.x = rows.const_data_ptr<T>();
    task.codes = codes.const_data_ptr<T>();
    task.grad_x = result.mutable_data_ptr<T>();
    task.rows = rows.size(1), task.dim = rows.size(2);
    check_launch(op,
                 kernels::TORCHVQ_CUDA_NAMESPACE::rotation_trick_backward(task, device.queue()));
    estimated = result.const_data_ptr<T>();
  }
  kernels::TORCHVQ_CUDA_NAMESPACE::CommitmentGradientTask<T> task;
  task.inputs = rows.const_data_ptr<T>();
  task.codes = codes.const_data_ptr<T>();
  task.count = 1;
  task.rows = rows.size(1), task.dim = rows.size(2);
  task.grads = grad_commitment.const_data_ptr<T>();
  task.grad = result.mutable_data_ptr<T>();
  task.other = estimated;
  check_launch(op, kernels::TORCHVQ_CUDA_NAMESPACE::commitment_gradients(task, device.queue()));
  return result;
}

at::Tensor cuda_quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                             const at::Tensor& grad_commitment, const at::Tensor& x,
                                             const at::Tensor& codes, bool rotates,
                                             const std::optional<at::Tensor>& mask,
                                             bool zeros_for_masked) {
  detail::check_quantize_and_commit_backward(grad_quantized, grad_commitment, x, codes, mask);
  if (mask)
    return any_device_kernel<at::Tensor>("torchvq::quantize_and_commit_backward", grad_quantized,
                                         grad_commitment, x, codes, rotates, mask,
                                         zeros_for_masked);
  const auto rows = detail::wide_rows(x).contiguous();
  const auto dtype = rows.scalar_type();
  const auto grad = detail::contiguous_rows(grad_quantized).reshape(rows.sizes()).to(dtype);
  const auto run =
      dtype == at::kDouble ? cuda_gradient_of_tokens<double> : cuda_gradient_of_tokens<float>;
  const auto result =
      run(grad, grad_commitment.to(dtype), rows, detail::contiguous_as(codes, dtype), rotates);
  return result.to(x.scalar_type()).reshape(x.sizes());
}

}  // namespace

TORCHVQ_CUDA_KERNEL(quantize_and_commit_backward, cuda_quantize_and_commit_backward)

}  // namespace torchvq
