#include "ops/scalar_decode.h"

#include <atomic>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/scalar_levels.h"

namespace torchvq {
namespace {

constexpr int64_t kDecodedPerTask = 8192;

at::Tensor scalar_level_indices(const at::Tensor& indices_, at::IntArrayRef levels) {
  detail::check_scalar_level_indices(indices_, levels);
  const auto indices = indices_.contiguous();
  auto sizes = indices.sizes().vec();
  const auto dim = static_cast<int64_t>(levels.size());
  sizes.push_back(dim);
  auto digits = at::empty(sizes, indices.options());
  const int64_t most = detail::scalar_basis(levels).back() * levels.back();
  const auto* from = indices.const_data_ptr<int64_t>();
  auto* to = digits.mutable_data_ptr<int64_t>();
  std::atomic<int64_t> wrong{-1};
  at::parallel_for(0, indices.numel(), kDecodedPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (from[row] < -1 || from[row] >= most) wrong = row;
      int64_t rest = from[row];
      for (int64_t j = 0; j < dim; ++j) {
        to[row * dim + j] = from[row] < 0 ? -1 : rest % levels[static_cast<size_t>(j)];
        rest /= levels[static_cast<size_t>(j)];
      }
    }
  });
  TORCH_CHECK_INDEX(wrong < 0, "scalar_level_indices: expected indices to be in [-1, ", most,
                    "), but got ", from[wrong < 0 ? 0 : wrong.load()]);
  return digits;
}

at::Tensor scalar_indices(const at::Tensor& level_indices_, at::IntArrayRef levels) {
  detail::check_scalar_indices(level_indices_, levels);
  const auto digits = level_indices_.contiguous();
  auto indices = at::empty(digits.sizes().slice(0, digits.dim() - 1), digits.options());
  const auto basis = detail::scalar_basis(levels);
  const auto dim = static_cast<int64_t>(levels.size());
  const auto* from = digits.const_data_ptr<int64_t>();
  auto* to = indices.mutable_data_ptr<int64_t>();
  std::atomic<int64_t> wrong{-1};
  at::parallel_for(0, indices.numel(), kDecodedPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      bool absent = false;
      int64_t index = 0;
      for (int64_t j = 0; j < dim; ++j) {
        const int64_t digit = from[row * dim + j];
        if (digit >= levels[static_cast<size_t>(j)]) {
          wrong = row * dim + j;
          break;
        }
        absent |= digit < 0;
        index += digit * basis[static_cast<size_t>(j)];
      }
      to[row] = absent ? -1 : index;
    }
  });
  TORCH_CHECK_INDEX(wrong < 0, "scalar_indices: expected level_indices to be below ", levels,
                    ", but got ", from[wrong < 0 ? 0 : wrong.load()]);
  return indices;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("scalar_level_indices", scalar_level_indices);
  m.impl("scalar_indices", scalar_indices);
}

}  // namespace torchvq
