#include "ops/residual_lookup.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/residual_arguments.h"
#include "kernels/cpu/row_magnitude.h"

namespace torchvq {
namespace {

template <typename T>
struct WalkedLevelRows {
  at::Tensor held;  ///< keeps the contiguous codes alive
  const T* codebook;
  int64_t size;
  int64_t head_stride;  ///< codes between heads
  T* inputs;
  T* codes;
};

template <typename T>
void check_walked_range(const at::Tensor& indices, const std::vector<WalkedLevelRows<T>>& levels) {
  const auto* index = indices.const_data_ptr<int64_t>();
  const int64_t rows = indices.size(0) * indices.size(1);
  for (int64_t row = 0; row < rows; ++row) {
    for (const auto& level : levels) {
      TORCH_CHECK_INDEX(*index >= 0 && *index < level.size,
                        "residual_lookup: expected indices to be in [0, ", level.size,
                        "), but got ", *index);
      ++index;
    }
  }
}

/// Takes one token through all levels while its residual is in cache.
template <typename T>
void walk_row_of_levels(const std::vector<WalkedLevelRows<T>>& levels, const int64_t* index,
                        int64_t head, int64_t row, int64_t dim, const T* x, T* total) {
  std::copy_n(x, dim, levels[0].inputs + row * dim);
  std::fill_n(total, dim, T(0));
  for (size_t q = 0; q < levels.size(); ++q) {
    const auto& level = levels[q];
    const T* const input = level.inputs + row * dim;
    T* const chosen = level.codes + row * dim;
    if (kernels::row_magnitude(input, dim).finite) {
      std::copy_n(level.codebook + (head * level.head_stride + index[q]) * dim, dim, chosen);
    } else {
      std::fill_n(chosen, dim, std::numeric_limits<T>::quiet_NaN());
    }
    for (int64_t d = 0; d < dim; ++d) total[d] += chosen[d];
    if (q + 1 == levels.size()) break;
    T* const left = levels[q + 1].inputs + row * dim;
    for (int64_t d = 0; d < dim; ++d) left[d] = input[d] - chosen[d];
  }
}

template <typename T>
detail::ResidualLookupTensors walk(const at::Tensor& x, at::TensorList codebooks,
                                   const at::Tensor& indices) {
  const auto options = x.options();
  std::vector<at::Tensor> inputs, codes;
  std::vector<WalkedLevelRows<T>> levels;
  for (const auto& codebook : codebooks) {
    inputs.push_back(at::empty(x.sizes(), options));
    codes.push_back(at::empty(x.sizes(), options));
    auto held = detail::contiguous_as(codebook, x.scalar_type());
    const auto* const data = held.const_data_ptr<T>();
    const int64_t size = codebook.size(-2);
    levels.push_back({std::move(held), data, size, detail::is_shared(codebook) ? 0 : size,
                      inputs.back().mutable_data_ptr<T>(), codes.back().mutable_data_ptr<T>()});
  }
  check_walked_range(indices, levels);
  auto total = at::empty(x.sizes(), options);
  const int64_t tokens = x.size(1), dim = x.size(2);
  const auto depth = static_cast<int64_t>(levels.size());
  const auto* index = indices.const_data_ptr<int64_t>();
  const auto* from = x.const_data_ptr<T>();
  auto* to = total.mutable_data_ptr<T>();
  const int64_t grain = 1 + 16384 / (dim * depth + 1);
  at::parallel_for(0, x.size(0) * tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      walk_row_of_levels(levels, index + row * depth, row / tokens, row, dim, from + row * dim,
                         to + row * dim);
    }
  });
  return {inputs, codes, total};
}

detail::ResidualLookupTensors residual_lookup(const at::Tensor& x_, at::TensorList codebooks,
                                              const at::Tensor& indices_) {
  detail::check_residual_lookup(x_, codebooks, indices_);
  const auto x = detail::contiguous_as(x_, detail::residual_lookup_dtype(x_));
  const auto indices = indices_.contiguous();
  return x.scalar_type() == at::kDouble ? walk<double>(x, codebooks, indices)
                                        : walk<float>(x, codebooks, indices);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("residual_lookup", residual_lookup); }

}  // namespace torchvq
