// CUDA: the loss in two launches and its gradient in one, with the bits of the CPU.
#include "ops/commitment_loss.h"

#include <ATen/ops/empty.h>

#include "detail/precision.h"
#include "detail/residual_arguments.h"
#include "kernels/cuda/commitment_loss.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

/// Contiguous arguments in the dtype of the loss.
struct CudaComparedTokens {
  at::Tensor x, codes, mask;

  CudaComparedTokens(const at::Tensor& x_, const at::Tensor& codes_,
                     const std::optional<at::Tensor>& mask_)
      : x(detail::contiguous_as(x_, detail::value_dtype(x_, codes_))),
        codes(detail::contiguous_as(codes_, x.scalar_type())) {
    if (mask_) mask = mask_->contiguous();
  }
  const bool* real() const { return mask.defined() ? mask.const_data_ptr<bool>() : nullptr; }
  int64_t rows() const { return x.size(0) * x.size(1); }
};

template <typename T>
at::Tensor cuda_loss(const CudaComparedTokens& tokens) {
  const OnDevice device(tokens.x);
  auto loss = at::empty({}, tokens.x.options());
  const int64_t blocks =
      kernels::TORCHVQ_CUDA_NAMESPACE::commitment_blocks(tokens.rows(), tokens.x.size(2));
  const auto sums = at::empty({blocks}, tokens.x.options().dtype(at::kDouble));
  const auto real = at::empty({blocks}, tokens.x.options().dtype(at::kLong));
  kernels::TORCHVQ_CUDA_NAMESPACE::CommitmentLossTask<T> task;
  task.levels.inputs[0] = tokens.x.const_data_ptr<T>();
  task.levels.codes[0] = tokens.codes.const_data_ptr<T>();
  task.levels.count = 1;
  task.levels.mask = tokens.real();
  task.levels.rows = tokens.rows(), task.levels.dim = tokens.x.size(2);
  task.sums = sums.mutable_data_ptr<double>();
  task.real = real.mutable_data_ptr<int64_t>();
  task.losses = loss.mutable_data_ptr<T>();
  check_launch("commitment_loss",
               kernels::TORCHVQ_CUDA_NAMESPACE::commitment_losses(task, device.queue()));
  return loss;
}

at::Tensor cuda_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss(x, codes, mask);
  const CudaComparedTokens tokens(x, codes, mask);
  return tokens.x.scalar_type() == at::kDouble ? cuda_loss<double>(tokens)
                                               : cuda_loss<float>(tokens);
}

template <typename T>
at::Tensor cuda_gradient(const at::Tensor& grad, const CudaComparedTokens& tokens) {
  const OnDevice device(tokens.x);
  auto result = at::empty(tokens.x.sizes(), tokens.x.options());
  const auto real = at::empty({1}, tokens.x.options().dtype(at::kLong));
  kernels::TORCHVQ_CUDA_NAMESPACE::CommitmentGradientTask<T> task;
  task.inputs = tokens.x.const_data_ptr<T>();
  task.codes = tokens.codes.const_data_ptr<T>();
  task.count = 1;
  task.mask = tokens.real();
  task.rows = tokens.rows(), task.dim = tokens.x.size(2);
  task.grads = grad.const_data_ptr<T>();
  task.real = real.mutable_data_ptr<int64_t>();
  task.grad = result.mutable_data_ptr<T>();
  check_launch("commitment_loss_backward",
               kernels::TORCHVQ_CUDA_NAMESPACE::commitment_gradients(task, device.queue()));
  return result;
}

at::Tensor cuda_commitment_loss_backward(const at::Tensor& grad, const at::Tensor& x,
                                         const at::Tensor& codes,
                                         const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss_backward(grad, x, codes, mask);
  const CudaComparedTokens tokens(x, codes, mask);
  return grad.scalar_type() == at::kDouble ? cuda_gradient<double>(grad, tokens)
                                           : cuda_gradient<float>(grad, tokens);
}

}  // namespace

TORCHVQ_CUDA_KERNEL(commitment_loss, cuda_commitment_loss)
TORCHVQ_CUDA_KERNEL(commitment_loss_backward, cuda_commitment_loss_backward)

}  // namespace torchvq
