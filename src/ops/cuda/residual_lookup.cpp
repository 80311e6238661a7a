// CUDA: one launch per 32 levels, for any number of heads, with the bits of the CPU.
#include "ops/residual_lookup.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "detail/residual_arguments.h"
#include "kernels/cuda/residual_lookup.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

/// Tokens, codebooks and results in the dtype of the computation.
struct CudaLookup {
  at::Tensor x, indices, quantized;
  std::vector<at::Tensor> codebooks, inputs, codes;

  CudaLookup(const at::Tensor& x_, at::TensorList codebooks_, const at::Tensor& indices_)
      : x(detail::contiguous_as(x_, detail::residual_lookup_dtype(x_))),
        indices(indices_.contiguous()),
        quantized(at::empty(x.sizes(), x.options())) {
    for (const auto& codebook : codebooks_) {
      codebooks.push_back(detail::contiguous_as(codebook, x.scalar_type()));
      inputs.push_back(at::empty(x.sizes(), x.options()));
      codes.push_back(at::empty(x.sizes(), x.options()));
    }
  }

  /// Levels starting at `first`, as many as fit a launch.
  template <typename T>
  kernels::TORCHVQ_CUDA_NAMESPACE::ResidualLookupTask<T> task_from(size_t first) const {
    constexpr size_t kMost = kernels::TORCHVQ_CUDA_NAMESPACE::kMostWalkedLevels;
    const size_t end = std::min(codebooks.size(), first + kMost);
    kernels::TORCHVQ_CUDA_NAMESPACE::ResidualLookupTask<T> task;
    task.x = (first == 0 ? x : inputs[first]).const_data_ptr<T>();
    task.indices = indices.const_data_ptr<int64_t>() + first;
    task.heads = x.size(0), task.tokens = x.size(1), task.dim = x.size(2);
    task.stride = static_cast<int64_t>(codebooks.size());
    task.quantized = quantized.mutable_data_ptr<T>();
    task.continues = first > 0;
    task.left = end < codebooks.size() ? inputs[end].mutable_data_ptr<T>() : nullptr;
    for (size_t q = first; q < end; ++q) {
      const int64_t size = codebooks[q].size(-2);
      task.levels[task.level_count++] = {
          codebooks[q].const_data_ptr<T>(), size, detail::is_shared(codebooks[q]) ? 0 : size,
          inputs[q].mutable_data_ptr<T>(), codes[q].mutable_data_ptr<T>()};
    }
    return task;
  }

  template <typename T>
  void run(const OnDevice& device) const {
    for (size_t first = 0; first < codebooks.size();
         first += kernels::TORCHVQ_CUDA_NAMESPACE::kMostWalkedLevels) {
      check_launch("residual_lookup", kernels::TORCHVQ_CUDA_NAMESPACE::residual_lookup(
                                          task_from<T>(first), device.queue()));
    }
  }
};

detail::ResidualLookupTensors cuda_residual_lookup(const at::Tensor& x, at::TensorList codebooks,
                                                   const at::Tensor& indices) {
  detail::check_residual_lookup(x, codebooks, indices);
  const OnDevice device(x);
  const CudaLookup lookup(x, codebooks, indices);
  if (lookup.x.scalar_type() == at::kDouble) {
    lookup.run<double>(device);
  } else {
    lookup.run<float>(device);
  }
  return {lookup.inputs, lookup.codes, lookup.quantized};
}

}  // namespace

TORCHVQ_CUDA_KERNEL(residual_lookup, cuda_residual_lookup)

}  // namespace torchvq
