#include "ops/scalar_quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cpu/scalar_patterns.h"

namespace torchvq {
namespace {

using detail::kFeaturesPerTask;

template <typename T>
using LevelTables = std::vector<std::shared_ptr<const detail::ScalarLevels<T>>>;

/// Marks a row that is not finite: codes NaN, index 0.
template <typename T>
void mark_row(T* codes, size_t dim, int64_t* index) {
  std::fill_n(codes, dim, std::numeric_limits<T>::quiet_NaN());
  *index = 0;
}

/// Quantizes one feature after the other, by bisection.
template <typename T>
void quantize_row(const T* x, const LevelTables<T>& features, const std::vector<int64_t>& basis,
                  T* codes, int64_t* index) {
  *index = 0;
  for (size_t j = 0; j < features.size(); ++j) {
    const auto& [changes, values] = *features[j];
    if (!std::isfinite(x[j])) return mark_row(codes, features.size(), index);
    const auto level = std::upper_bound(changes.begin(), changes.end(), x[j]) - changes.begin();
    codes[j] = values[static_cast<size_t>(level)];
    *index += level * basis[j];
  }
}

template <typename T>
void quantize_rows(const at::Tensor& x, at::IntArrayRef levels, detail::ScalarBound bound,
                   at::Tensor& codes, at::Tensor& indices) {
  LevelTables<T> features;
  for (const int64_t count : levels) features.push_back(detail::scalar_levels<T>(count, bound));
  const auto basis = detail::scalar_basis(levels);
  const auto dim = static_cast<int64_t>(levels.size());
  const T* from = x.const_data_ptr<T>();
  T* to = codes.mutable_data_ptr<T>();
  int64_t* index = indices.mutable_data_ptr<int64_t>();
  at::parallel_for(0, indices.numel(), kFeaturesPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      quantize_row(from + row * dim, features, basis, to + row * dim, index + row);
    }
  });
}

void compare_rows(const at::Tensor& x, at::IntArrayRef levels, detail::ScalarBound bound,
                  at::Tensor& codes, at::Tensor& indices) {
  const auto patterns = detail::scalar_patterns(levels, bound);
  const auto kernel = kernels::scalar_quantize_kernel(kernels::cpu_level());
  const auto dim = static_cast<int64_t>(levels.size());
  const int64_t block = std::min(detail::kBlockValues / dim + 1, indices.numel());
  const float* from = x.const_data_ptr<float>();
  float* to = codes.mutable_data_ptr<float>();
  int64_t* index = indices.mutable_data_ptr<int64_t>();
  at::parallel_for(0, indices.numel(), kFeaturesPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> level(static_cast<size_t>(block * dim));
    for (int64_t row = begin; row < end; row += block) {
      const int64_t rows = std::min(block, end - row);
      kernel.quantize(patterns->view(), from + row * dim, rows * dim, to + row * dim, level.data());
      const int32_t* digit = level.data();
      for (int64_t r = row; r < row + rows; ++r) {
        index[r] = detail::index_of(digit, patterns->basis);
        digit += dim;
        if (index[r] < 0) mark_row(to + r * dim, static_cast<size_t>(dim), index + r);
      }
    }
  });
}

std::tuple<at::Tensor, at::Tensor> scalar_quantize(const at::Tensor& x_, at::IntArrayRef levels,
                                                   std::string_view bound_name) {
  const auto bound = detail::check_scalar_quantize(x_, levels, bound_name);
  const auto x = x_.to(detail::compute_dtype(x_)).contiguous();
  auto codes = at::empty(x.sizes(), x.options());
  auto indices = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kLong));
  if (x.scalar_type() == at::kDouble) {
    quantize_rows<double>(x, levels, bound, codes, indices);
  } else if (detail::is_compared(levels)) {
    compare_rows(x, levels, bound, codes, indices);
  } else {
    quantize_rows<float>(x, levels, bound, codes, indices);
  }
  return {codes, indices};
}

at::Tensor scalar_quantize_backward(const at::Tensor& grad_, const at::Tensor& x_,
                                    at::IntArrayRef levels, std::string_view bound_name) {
  const auto bound = detail::check_scalar_quantize_backward(grad_, x_, levels, bound_name);
  if (x_.scalar_type() == at::kDouble) {
    return detail::scalar_quantize_backward_any(grad_, x_, levels, bound_name);
  }
  const auto patterns = detail::scalar_patterns(levels, bound);
  const auto kernel = kernels::scalar_quantize_kernel(kernels::cpu_level());
  const auto x = x_.to(at::kFloat).contiguous(), grad = grad_.to(at::kFloat).contiguous();
  auto result = at::empty(x.sizes(), x.options());
  const auto dim = static_cast<int64_t>(levels.size());
  const float *from = grad.const_data_ptr<float>(), *at_x = x.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel() / dim, kFeaturesPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * dim;
    kernel.slope(patterns->slopes(), from + first, at_x + first, (end - begin) * dim, to + first);
  });
  return result.to(x_.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("scalar_quantize", scalar_quantize);
  m.impl("scalar_quantize_backward", scalar_quantize_backward);
}

}  // namespace torchvq
