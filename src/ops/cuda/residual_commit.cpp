// CUDA: a walk over 32 levels is one launch and their losses are two, for any number of heads; the gradient is one. With
// the bits of the CPU.
#include "ops/residual_commit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "detail/residual_arguments.h"
#include "kernels/cuda/commitment_loss.h"
#include "kernels/cuda/residual_commit.h"
#include "ops/cuda/kernel.h"
#include "ops/unit_vectors.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

/// Tokens, codebooks and results in the dtype of the computation.
template <typename T>
struct CudaCommitment {
  at::Tensor x, indices, mask, quantized, losses, residuals;
  std::vector<at::Tensor> codebooks;

  CudaCommitment(const at::Tensor& x_, at::TensorList codebooks_, const at::Tensor& indices_,
                 const std::optional<at::Tensor>& mask_)
      : x(detail::contiguous_as(x_, c10::CppTypeToScalarType<T>::value)),
        indices(indices_.contiguous()),
        quantized(at::empty(x.sizes(), x.options())) {
    if (mask_) mask = mask_->contiguous();
    for (const auto& codebook : codebooks_) {
      codebooks.push_back(detail::contiguous_as(codebook, x.scalar_type()));
    }
    losses = at::empty({levels()}, x.options());
    residuals = at::empty({levels(), x.size(0), x.size(1), x.size(2)}, x.options());
  }

  int64_t levels() const { return static_cast<int64_t>(codebooks.size()); }
  int64_t head_stride(int64_t level) const {
    const auto& codebook = codebooks[static_cast<size_t>(level)];
    return detail::is_shared(codebook) || x.size(0) == 1 ? 0 : codebook.size(-2);
  }
  const T* codes(int64_t level) const {
    return codebooks[static_cast<size_t>(level)].template const_data_ptr<T>();
  }
  const T* input_of(int64_t level) const {
    return level == 0 ? x.const_data_ptr<T>()
                      : residuals.const_data_ptr<T>() + (level - 1) * x.numel();
  }

  void walk(int64_t first, int64_t count, const OnDevice& device) const {
    kernels::TORCHVQ_CUDA_NAMESPACE::ResidualCommitTask<T> task;
    task.x = input_of(first);
    task.indices = indices.const_data_ptr<int64_t>() + first;
    task.heads = x.size(0), task.tokens = x.size(1), task.dim = x.size(2);
    task.stride = levels();
    task.quantized = quantized.mutable_data_ptr<T>();
    task.continues = first > 0;
    task.residuals = residuals.mutable_data_ptr<T>() + first * x.numel();
    for (int64_t level = first; level < first + count; ++level) {
      task.levels[task.level_count++] = {
          codes(level), codebooks[static_cast<size_t>(level)].size(-2), head_stride(level)};
    }
    check_launch("residual_commit",
                 kernels::TORCHVQ_CUDA_NAMESPACE::residual_commit(task, device.queue()));
  }

  void score(int64_t first, int64_t count, const at::Tensor& sums, const at::Tensor& real,
             const OnDevice& device) const {
    kernels::TORCHVQ_CUDA_NAMESPACE::CommitmentLossTask<T> task;
    auto& scored = task.levels;
    for (int64_t level = first; level < first + count; ++level) {
      scored.inputs[scored.count] = input_of(level);
      scored.codes[scored.count] = codes(level);
      scored.head_stride[scored.count++] = head_stride(level);
    }
    scored.indices = indices.const_data_ptr<int64_t>() + first;
    scored.stride = levels(), scored.tokens = x.size(1);
    scored.mask = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
    scored.rows = x.size(0) * x.size(1), scored.dim = x.size(2);
    task.sums = sums.mutable_data_ptr<double>();
    task.real = real.mutable_data_ptr<int64_t>();
    task.losses = losses.mutable_data_ptr<T>() + first;
    check_launch("residual_commit",
                 kernels::TORCHVQ_CUDA_NAMESPACE::commitment_losses(task, device.queue()));
  }

  detail::ResidualCommitTensors run(const OnDevice& device) const {
    constexpr int64_t kMost = std::min(kernels::TORCHVQ_CUDA_NAMESPACE::kMostWalkedLevels,
                                       kernels::TORCHVQ_CUDA_NAMESPACE::kMostScoredLevels);
    const int64_t terms =
        kernels::TORCHVQ_CUDA_NAMESPACE::commitment_blocks(x.size(0) * x.size(1), x.size(2)) *
        std::min(levels(), kMost);
    const auto sums = at::empty({terms}, x.options().dtype(at::kDouble));
    const auto real = at::empty({terms}, x.options().dtype(at::kLong));
    for (int64_t first = 0; first < levels(); first += kMost) {
      const int64_t count = std::min(levels() - first, kMost);
      walk(first, count, device);
      score(first, count, sums, real, device);
    }
    return {quantized, losses, residuals};
  }
};

detail::ResidualCommitTensors cuda_residual_commit(const at::Tensor& x, at::TensorList codebooks,
                                                   const at::Tensor& indices,
                                                   const std::optional<at::Tensor>& mask,
                                                   std::string_view estimator, double gain) {
  detail::check_residual_commit(x, codebooks, indices, mask, estimator, gain);
  const OnDevice device(x);
  if (detail::compute_dtype(x) == at::kDouble) {
    return CudaCommitment<double>(x, codebooks, indices, mask).run(device);
  }
  return CudaCommitment<float>(x, codebooks, indices, mask).run(device);
}

template <typename T>
at::Tensor cuda_commit_gradients(const at::Tensor& grads, const at::Tensor& residuals,
                                 const at::Tensor& mask, double gain, const at::Tensor& other) {
  constexpr int64_t kMost = kernels::TORCHVQ_CUDA_NAMESPACE::kMostScoredLevels;
  const OnDevice device(residuals);
  auto result = at::empty(residuals.sizes().slice(1), residuals.options());
  const auto real = at::empty({1}, residuals.options().dtype(at::kLong));
  const int64_t levels = residuals.size(0);
  for (int64_t end = levels; end > 0;) {
    const int64_t count = std::min(end, kMost), first = end - count;
    kernels::TORCHVQ_CUDA_NAMESPACE::CommitmentGradientTask<T> task;
    task.inputs = residuals.const_data_ptr<T>() + first * result.numel();
    task.count = static_cast<int>(count);
    task.mask = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
    task.rows = result.size(0) * result.size(1), task.dim = result.size(2);
    task.grads = grads.const_data_ptr<T>() + first;
    task.real = real.mutable_data_ptr<int64_t>();
    task.grad = result.mutable_data_ptr<T>();
    task.continues = end < levels;
    if (first == 0) {
      task.share = static_cast<T>(1 / gain);
      task.other = other.defined() ? other.const_data_ptr<T>() : nullptr;
    }
    check_launch("residual_commit_backward",
                 kernels::TORCHVQ_CUDA_NAMESPACE::commitment_gradients(task, device.queue()));
    end = first;
  }
  return result;
}

at::Tensor cuda_residual_commit_backward(const at::Tensor& grads_, const at::Tensor& residuals_,
                                         const std::optional<at::Tensor>& mask_, double gain,
                                         const std::optional<at::Tensor>& other_) {
  detail::check_residual_commit_backward(grads_, residuals_, mask_, gain, other_);
  const auto dtype = detail::compute_dtype(residuals_);
  const auto residuals = detail::contiguous_as(residuals_, dtype);
  const auto grads = detail::contiguous_as(grads_, dtype);
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const auto other = other_ ? detail::contiguous_as(*other_, dtype) : at::Tensor();
  const auto result = dtype == at::kDouble
                          ? cuda_commit_gradients<double>(grads, residuals, mask, gain, other)
                          : cuda_commit_gradients<float>(grads, residuals, mask, gain, other);
  return result.to(residuals_.scalar_type());
}

}  // namespace

TORCHVQ_CUDA_KERNEL(residual_commit, cuda_residual_commit)
TORCHVQ_CUDA_KERNEL(residual_commit_backward, cuda_residual_commit_backward)

}  // namespace torchvq
