#include "ops/lookup_codes.h"

#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace torchvq {
namespace {

void check_range(const at::Tensor& indices, int64_t codebook_size) {
  const auto* index = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    TORCH_CHECK_INDEX(index[i] >= -1 && index[i] < codebook_size,
                      "lookup_codes: expected indices to be in [-1, ", codebook_size, "), but got ",
                      index[i]);
  }
}

at::Tensor lookup_codes(const at::Tensor& codebook_, const at::Tensor& indices_) {
  detail::check_lookup_codes(codebook_, indices_);
  const auto codebook = codebook_.contiguous();
  const auto indices = indices_.contiguous();
  const int64_t heads = codebook.size(0), size = codebook.size(1), dim = codebook.size(2),
                tokens = indices.size(1);
  check_range(indices, size);

  auto codes = at::empty({heads, tokens, dim}, codebook.options());
  const auto row_bytes = static_cast<size_t>(dim) * codebook.element_size();
  const auto* source = static_cast<const char*>(codebook.const_data_ptr());
  auto* target = static_cast<char*>(codes.mutable_data_ptr());
  const auto* index = indices.const_data_ptr<int64_t>();
  const int64_t grain = std::max<int64_t>(1, 32768 / static_cast<int64_t>(row_bytes + 1));
  at::parallel_for(0, heads * tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t head = row / tokens;
      auto* to = target + static_cast<size_t>(row) * row_bytes;
      if (index[row] < 0) {
        std::memset(to, 0, row_bytes);
      } else {
        std::memcpy(to, source + static_cast<size_t>(head * size + index[row]) * row_bytes,
                    row_bytes);
      }
    }
  });
  return codes;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("lookup_codes", lookup_codes); }

}  // namespace torchvq
