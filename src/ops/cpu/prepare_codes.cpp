#include "ops/prepare_codes.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "kernels/cpu/prepared_codes.h"

namespace torchvq {
namespace {

at::Tensor prepare_codes(const at::Tensor& codebook) {
  detail::check_prepare_codes(codebook);
  auto prepared =
      at::zeros_symint(detail::prepared_sizes(codebook), codebook.options().dtype(at::kByte));
  // float64 codes are not screened; zeros mark the result as unusable.
  if (prepared.numel() == 0 || codebook.scalar_type() == at::kDouble) return prepared;
  const auto codes = codebook.to(at::kFloat).contiguous();
  const int64_t size = codes.size(-2), dim = codes.size(-1), bytes = prepared.size(-1);
  const auto* const from = codes.const_data_ptr<float>();
  auto* const to = prepared.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, prepared.numel() / bytes, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      kernels::prepare_codes(from + head * size * dim, size, dim, to + head * bytes);
    }
  });
  return prepared;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("prepare_codes", prepare_codes); }

}  // namespace torchvq
