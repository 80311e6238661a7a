#include "ops/residual_decode.h"

#include <algorithm>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/residual_arguments.h"

namespace torchvq {
namespace {

/// One codebook in the dtype of the sum.
struct Level {
  at::Tensor codes;  ///< (H, K, D) or, shared by the heads, (1, K, D) or (K, D), contiguous
  int64_t size = 0;
  int64_t head_stride = 0;  ///< codes between heads
};

void check_range(const at::Tensor& indices, const std::vector<Level>& levels) {
  const auto* index = indices.const_data_ptr<int64_t>();
  const int64_t rows = indices.size(0) * indices.size(1);
  for (int64_t row = 0; row < rows; ++row) {
    for (const auto& level : levels) {
      TORCH_CHECK_INDEX(*index >= -1 && *index < level.size,
                        "residual_decode: expected indices to be in [-1, ", level.size,
                        "), but got ", *index);
      ++index;
    }
  }
}

template <typename T>
void add_codes(const std::vector<Level>& levels, const int64_t* index, int64_t head, int64_t dim,
               T* to) {
  std::fill_n(to, dim, T(0));
  for (size_t n = 0; n < levels.size(); ++n) {
    if (index[n] < 0) continue;
    const T* const code =
        levels[n].codes.const_data_ptr<T>() + (head * levels[n].head_stride + index[n]) * dim;
    for (int64_t d = 0; d < dim; ++d) to[d] += code[d];
  }
}

at::Tensor residual_decode(const at::Tensor& indices_, at::TensorList codebooks) {
  detail::check_residual_decode(indices_, codebooks);
  const auto dtype = detail::residual_decode_dtype(codebooks);
  const auto sum_dtype = detail::compute_dtype(dtype);
  const auto indices = indices_.contiguous();
  std::vector<Level> levels;
  for (const auto& codebook : codebooks) {
    const int64_t size = codebook.size(-2);
    const int64_t head_stride = detail::is_shared(codebook) ? 0 : size;
    levels.push_back({detail::contiguous_as(codebook, sum_dtype), size, head_stride});
  }
  check_range(indices, levels);
  const int64_t heads = indices.size(0), tokens = indices.size(1), dim = codebooks[0].size(-1);
  const auto depth = static_cast<int64_t>(levels.size());
  auto total = at::empty({heads, tokens, dim}, indices.options().dtype(sum_dtype));
  AT_DISPATCH_FLOATING_TYPES(sum_dtype, "residual_decode", [&] {
    const auto* index = indices.const_data_ptr<int64_t>();
    auto* to = total.mutable_data_ptr<scalar_t>();
    const int64_t grain = 1 + 32768 / (dim * depth + 1);
    at::parallel_for(0, heads * tokens, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        add_codes(levels, index + row * depth, row / tokens, dim, to + row * dim);
      }
    });
  });
  return total.to(dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("residual_decode", residual_decode); }

}  // namespace torchvq
