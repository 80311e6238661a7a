#include "ops/residual_scalar_quantize.h"

#include <algorithm>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cpu/scalar_patterns.h"

namespace torchvq {
namespace {

/// (Q, period): the scales in the layout that the kernels read.
std::vector<float> scale_patterns(const at::Tensor& scales_) {
  const auto scales = scales_.to(at::kFloat).contiguous();
  const auto dim = scales.size(1);
  std::vector<float> patterns;
  patterns.reserve(static_cast<size_t>(scales.numel() * kernels::kScalarRepeat));
  for (int64_t q = 0; q < scales.size(0); ++q) {
    const float* row = scales.const_data_ptr<float>() + q * dim;
    for (int64_t i = 0; i < kernels::kScalarRepeat; ++i) {
      patterns.insert(patterns.end(), row, row + dim);
    }
  }
  return patterns;
}

bool is_served(const at::Tensor& x, at::IntArrayRef levels) {
  return x.scalar_type() != at::kDouble && detail::is_compared(levels);
}

/// Writes the indices (rows, Q) of a block whose levels are (Q, rows * D). A row that is not finite
/// becomes NaN, with indices 0.
void write_rows(const int32_t* levels, int64_t rows, int64_t quantizers,
                const std::vector<int64_t>& basis, float* quantized, int64_t* indices) {
  const auto dim = static_cast<int64_t>(basis.size());
  for (int64_t q = 0; q < quantizers; ++q, levels += rows * dim) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t index = detail::index_of(levels + r * dim, basis);
      indices[r * quantizers + q] = std::max<int64_t>(index, 0);
      if (index < 0) {
        std::fill_n(quantized + r * dim, dim, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
}

std::tuple<at::Tensor, at::Tensor> residual_scalar_quantize(const at::Tensor& x_,
                                                            at::IntArrayRef levels,
                                                            const at::Tensor& scales,
                                                            std::string_view bound_name) {
  const auto bound = detail::check_residual_scalar_quantize(x_, levels, scales, bound_name);
  if (!is_served(x_, levels)) {
    return detail::residual_scalar_quantize_any(x_, levels, scales, bound_name);
  }
  const auto x = x_.to(at::kFloat).contiguous();
  const auto dim = static_cast<int64_t>(levels.size()), quantizers = scales.size(0);
  auto quantized = at::empty(x.sizes(), x.options());
  auto sizes = x.sizes().vec();
  sizes.back() = quantizers;
  auto indices = at::empty(sizes, x.options().dtype(at::kLong));

  const auto patterns = detail::scalar_patterns(levels, bound);
  const auto scale = scale_patterns(scales);
  const kernels::ScalarStack stack{quantizers, scale.data()};
  const auto kernel = kernels::scalar_quantize_kernel(kernels::cpu_level());
  const int64_t block = std::min(detail::kBlockValues / (dim * quantizers) + 1, x.numel() / dim);
  const float* from = x.const_data_ptr<float>();
  float* to = quantized.mutable_data_ptr<float>();
  int64_t* index = indices.mutable_data_ptr<int64_t>();
  const int64_t per_task = detail::kFeaturesPerTask / (dim * quantizers) + 1;
  at::parallel_for(0, x.numel() / dim, per_task, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> level(static_cast<size_t>(block * dim * quantizers));
    for (int64_t row = begin; row < end; row += block) {
      const int64_t rows = std::min(block, end - row);
      kernel.walk(patterns->view(), stack, from + row * dim, rows * dim, to + row * dim,
                  level.data());
      write_rows(level.data(), rows, quantizers, patterns->basis, to + row * dim,
                 index + row * quantizers);
    }
  });
  return {quantized, indices};
}

at::Tensor residual_scalar_quantize_backward(const at::Tensor& grad_, const at::Tensor& x_,
                                             at::IntArrayRef levels, const at::Tensor& scales,
                                             std::string_view bound_name) {
  const auto bound =
      detail::check_residual_scalar_quantize_backward(grad_, x_, levels, scales, bound_name);
  if (!is_served(x_, levels)) {
    return detail::residual_scalar_quantize_backward_any(grad_, x_, levels, scales, bound_name);
  }
  const auto patterns = detail::scalar_patterns(levels, bound);
  const auto scale = scale_patterns(scales);
  const kernels::ScalarStack stack{scales.size(0), scale.data()};
  const auto kernel = kernels::scalar_quantize_kernel(kernels::cpu_level());
  const bool tanh = detail::is_tanh(bound);
  const auto x = x_.to(at::kFloat).contiguous(), grad = grad_.to(at::kFloat).contiguous();
  auto result = at::empty(x.sizes(), x.options());
  const auto dim = static_cast<int64_t>(levels.size());
  const float *from = grad.const_data_ptr<float>(), *at_x = x.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  const int64_t per_task = detail::kFeaturesPerTask / (dim * scales.size(0)) + 1;
  at::parallel_for(0, x.numel() / dim, per_task, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * dim;
    kernel.walk_slope(patterns->view(), stack, tanh, from + first, at_x + first,
                      (end - begin) * dim, to + first);
  });
  return result.to(x_.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("residual_scalar_quantize", residual_scalar_quantize);
  m.impl("residual_scalar_quantize_backward", residual_scalar_quantize_backward);
}

}  // namespace torchvq
