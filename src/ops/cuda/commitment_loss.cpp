// CUDA: the losses of one or many levels in two launches, and the gradient in one,
// with the bits of the CPU.
#include "ops/commitment_loss.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "detail/residual_arguments.h"
#include "kernels/cuda/commitment_loss.h"
#include "ops/cuda/kernel.h"
#include "ops/residual_commitment_loss.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

/// Levels [first, first + count) as launch arguments; owns converted tensors.
template <typename T>
struct CudaScoredLevels {
  std::vector<at::Tensor> held;
  kernels::TORCHVQ_CUDA_NAMESPACE::ScoredLevels<T> levels;

  CudaScoredLevels(at::TensorList inputs, at::TensorList codes, const at::Tensor& mask,
                   size_t first, size_t count) {
    const auto hold = [&](const at::Tensor& tensor) {
      held.push_back(detail::contiguous_as(tensor, c10::CppTypeToScalarType<T>::value));
      return held.back().template const_data_ptr<T>();
    };
    for (size_t level = first; level < first + count; ++level) {
      levels.inputs[levels.count] = hold(inputs[level]);
      levels.codes[levels.count++] = hold(codes[level]);
    }
    levels.mask = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
    levels.rows = inputs[0].size(0) * inputs[0].size(1), levels.dim = inputs[0].size(2);
  }
};

at::Tensor cuda_token_mask(const std::optional<at::Tensor>& mask) {
  return mask ? mask->contiguous() : at::Tensor();
}

template <typename T>
at::Tensor cuda_losses(const char* op, at::TensorList inputs, at::TensorList codes,
                       const std::optional<at::Tensor>& mask_) {
  constexpr size_t kMost = kernels::TORCHVQ_CUDA_NAMESPACE::kMostScoredLevels;
  const OnDevice device(inputs[0]);
  const auto mask = cuda_token_mask(mask_);
  const auto options = inputs[0].options();
  at::Tensor losses = at::empty({static_cast<int64_t>(inputs.size())},
                                options.dtype(c10::CppTypeToScalarType<T>::value));
  const int64_t blocks = kernels::TORCHVQ_CUDA_NAMESPACE::commitment_blocks(
      inputs[0].size(0) * inputs[0].size(1), inputs[0].size(2));
  const auto terms = blocks * static_cast<int64_t>(std::min(inputs.size(), kMost));
  const auto sums = at::empty({terms}, options.dtype(at::kDouble));
  const auto real = at::empty({terms}, options.dtype(at::kLong));
  for (size_t first = 0; first < inputs.size(); first += kMost) {
    const CudaScoredLevels<T> own(inputs, codes, mask, first,
                                  std::min(inputs.size() - first, kMost));
    kernels::TORCHVQ_CUDA_NAMESPACE::CommitmentLossTask<T> task;
    task.levels = own.levels;
    task.sums = sums.mutable_data_ptr<double>();
    task.real = real.mutable_data_ptr<int64_t>();
    task.losses = losses.mutable_data_ptr<T>() + first;
    check_launch(op, kernels::TORCHVQ_CUDA_NAMESPACE::commitment_losses(task, device.queue()));
  }
  return losses;
}

at::Tensor cuda_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss(x, codes, mask);
  const bool wide = detail::value_dtype(x, codes) == at::kDouble;
  const auto losses = wide ? cuda_losses<double> : cuda_losses<float>;
  return losses("commitment_loss", at::TensorList(x), at::TensorList(codes), mask).squeeze(0);
}

at::Tensor cuda_residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                         at::TensorList codes,
                                         const std::optional<at::Tensor>& mask) {
  detail::check_residual_commitment_loss(x, inputs, codes, mask);
  const bool wide = detail::residual_loss_dtype(inputs, codes) == at::kDouble;
  const auto losses = wide ? cuda_losses<double> : cuda_losses<float>;
  return losses("residual_commitment_loss", inputs, codes, mask);
}

template <typename T>
at::Tensor cuda_commitment_gradients(const at::Tensor& grads_, at::TensorList inputs,
                                     at::TensorList codes, const std::optional<at::Tensor>& mask_) {
  constexpr size_t kMost = kernels::TORCHVQ_CUDA_NAMESPACE::kMostScoredLevels;
  const OnDevice device(grads_);
  const auto mask = cuda_token_mask(mask_), grads = grads_.contiguous();
  auto result = at::empty(inputs[0].sizes(), grads.options());
  const auto real = at::empty({1}, grads.options().dtype(at::kLong));
  for (size_t end = inputs.size(); end > 0;) {
    const size_t count = std::min(end, kMost), first = end - count;
    const CudaScoredLevels<T> own(inputs, codes, mask, first, count);
    kernels::TORCHVQ_CUDA_NAMESPACE::CommitmentGradientTask<T> task;
    task.levels = own.levels;
    task.grads = grads.const_data_ptr<T>() + first;
    task.real = real.mutable_data_ptr<int64_t>();
    task.grad = result.mutable_data_ptr<T>();
    task.continues = end < inputs.size();
    check_launch("residual_commitment_loss_backward",
                 kernels::TORCHVQ_CUDA_NAMESPACE::commitment_gradients(task, device.queue()));
    end = first;
  }
  return result;
}

at::Tensor cuda_residual_commitment_loss_backward(const at::Tensor& grads, at::TensorList inputs,
                                                  at::TensorList codes,
                                                  const std::optional<at::Tensor>& mask) {
  detail::check_residual_commitment_loss_backward(grads, inputs, codes, mask);
  return grads.scalar_type() == at::kDouble
             ? cuda_commitment_gradients<double>(grads, inputs, codes, mask)
             : cuda_commitment_gradients<float>(grads, inputs, codes, mask);
}

}  // namespace

TORCHVQ_CUDA_KERNEL(commitment_loss, cuda_commitment_loss)
TORCHVQ_CUDA_KERNEL(residual_commitment_loss, cuda_residual_commitment_loss)
TORCHVQ_CUDA_KERNEL(residual_commitment_loss_backward, cuda_residual_commitment_loss_backward)

}  // namespace torchvq
