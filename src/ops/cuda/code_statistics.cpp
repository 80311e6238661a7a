// CUDA: atomics on whole numbers, which have no order: the bits of the CPU, run after run.
#include "ops/code_statistics.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kernels/cuda/code_statistics.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using detail::element_type;
using detail::elements_of;
using namespace detail::TORCHVQ_CUDA_NAMESPACE;

detail::CodeStatistics cuda_code_statistics(const at::Tensor& x_, const at::Tensor& indices_,
                                            const at::Tensor& exponents_,
                                            const std::optional<at::Tensor>& mask_) {
  detail::check_code_statistics(x_, indices_, exponents_, mask_);
  const OnDevice device(x_);
  const auto x = elements_of(x_), indices = indices_.contiguous(),
             exponents = exponents_.contiguous();
  const auto mask = mask_.has_value() ? mask_->expand(indices.sizes()).contiguous() : at::Tensor();
  const int64_t heads = x.size(0), dim = x.size(2), size = exponents.size(1);
  auto counts = at::zeros({heads, size}, indices.options());
  auto used = at::empty({heads, size}, exponents.options());
  auto sums = at::zeros({detail::sum_words(x.scalar_type()), heads, size, dim}, indices.options());
  const auto slots = at::empty(indices.sizes(), indices.options());

  kernels::TORCHVQ_CUDA_NAMESPACE::CodeStatisticsTask task;
  task.x = x.const_data_ptr();
  task.type = element_type(x);
  task.indices = indices.const_data_ptr<int64_t>();
  task.mask = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  task.exponents = exponents.const_data_ptr<int32_t>();
  task.heads = heads, task.tokens = x.size(1), task.dim = dim, task.size = size;
  task.slots = slots.mutable_data_ptr<int64_t>();
  task.used = used.mutable_data_ptr<int32_t>();
  task.counts = counts.mutable_data_ptr<int64_t>();
  task.sums = sums.mutable_data_ptr<int64_t>();
  check_launch("code_statistics",
               kernels::TORCHVQ_CUDA_NAMESPACE::code_statistics(task, device.queue()));
  return {counts, sums, used};
}

}  // namespace

TORCHVQ_CUDA_KERNEL(code_statistics, cuda_code_statistics)

}  // namespace torchvq
