// CUDA: moves rows as plain bytes.
#include "ops/lookup_codes.h"

#include <ATen/ops/empty.h>

#include "kernels/cuda/lookup_codes.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

at::Tensor cuda_lookup_codes(const at::Tensor& codebook_, const at::Tensor& indices_) {
  detail::check_lookup_codes(codebook_, indices_);
  const OnDevice device(codebook_);
  const auto codebook = codebook_.contiguous(), indices = indices_.contiguous();
  auto codes = at::empty({codebook.size(0), indices.size(1), codebook.size(2)}, codebook.options());
  kernels::TORCHVQ_CUDA_NAMESPACE::LookupCodesTask task;
  task.codebook = codebook.const_data_ptr();
  task.indices = indices.const_data_ptr<int64_t>();
  task.codes = codes.mutable_data_ptr();
  task.heads = codebook.size(0), task.tokens = indices.size(1), task.size = codebook.size(1);
  task.row_bytes = codebook.size(2) * static_cast<int64_t>(codebook.element_size());
  check_launch("lookup_codes", kernels::TORCHVQ_CUDA_NAMESPACE::lookup_codes(task, device.queue()));
  return codes;
}

}  // namespace

TORCHVQ_CUDA_KERNEL(lookup_codes, cuda_lookup_codes)

}  // namespace torchvq
