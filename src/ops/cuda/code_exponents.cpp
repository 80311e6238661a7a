#include "ops/code_exponents.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/cuda/learning_tasks.h"

namespace torchvq {
namespace {

at::Tensor cuda_code_exponents(const at::Tensor& codebook_) {
  using namespace detail::TORCHVQ_CUDA_NAMESPACE;
  detail::check_code_exponents(codebook_);
  const OnDevice device(codebook_);
  const auto codebook = detail::elements_of(codebook_);
  const int64_t heads = codebook.size(0), size = codebook.size(1);
  auto exponents = at::empty({heads, size}, codebook.options().dtype(at::kInt));
  const auto totals = at::zeros({heads, 2}, codebook.options().dtype(at::kLong));
  const learning::Tasks tasks(exponents_task(codebook, totals, exponents));
  check_launch("code_exponents", learning::code_exponents(tasks, device.queue()));
  return exponents;
}

}  // namespace

TORCHVQ_CUDA_KERNEL(code_exponents, cuda_code_exponents)

}  // namespace torchvq
