#include "ops/code_exponents.h"

#include <ATen/ops/empty.h>

#include "kernels/cuda/code_exponents.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

at::Tensor cuda_code_exponents(const at::Tensor& codebook_) {
  using namespace detail::TORCHVQ_CUDA_NAMESPACE;
  detail::check_code_exponents(codebook_);
  const OnDevice device(codebook_);
  const auto codebook = detail::elements_of(codebook_);
  const int64_t heads = codebook.size(0), size = codebook.size(1);
  auto exponents = at::empty({heads, size}, codebook.options().dtype(at::kInt));
  const auto totals = at::empty({heads, 2}, codebook.options().dtype(at::kLong));
  kernels::TORCHVQ_CUDA_NAMESPACE::CodeExponentsTask task;
  task.codebook = codebook.const_data_ptr();
  task.type = detail::element_type(codebook);
  task.heads = heads, task.size = size, task.dim = codebook.size(2);
  task.totals = totals.mutable_data_ptr<int64_t>();
  task.exponents = exponents.mutable_data_ptr<int32_t>();
  check_launch("code_exponents",
               kernels::TORCHVQ_CUDA_NAMESPACE::code_exponents(task, device.queue()));
  return exponents;
}

}  // namespace

TORCHVQ_CUDA_KERNEL(code_exponents, cuda_code_exponents)

}  // namespace torchvq
