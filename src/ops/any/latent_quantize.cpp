// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/latent_quantize.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#include <torchvq/ops/scalar_decode.h>

#include "detail/precision.h"
#include "detail/scalar_levels.h"
#include "ops/any/sum_by_index.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// The nearest level of one feature; the lowest one wins ties, and a NaN is never the nearest.
at::Tensor nearest_level(const at::Tensor& x, const at::Tensor& values) {
  const auto exact = (x.unsqueeze(-1) - values).abs();
  const auto distances = at::where(exact.isnan(), std::numeric_limits<double>::infinity(), exact);
  const auto nearest = distances.eq(distances.amin(-1, /*keepdim=*/true));
  const int64_t count = values.size(0);
  const auto numbers = at::arange(count, x.options().dtype(at::kLong));
  return at::where(nearest, numbers, count).amin(-1).clamp_max(count - 1);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> latent_quantize(
    const at::Tensor& x, const at::Tensor& values, at::IntArrayRef levels, double commitment,
    double quantization, const OptionalTensor& mask) {
  detail::check_latent_quantize(x, values, levels, commitment, quantization, mask);
  const auto wide = x.to(detail::sum_dtype(x)), table = values.to(wide.scalar_type());
  const auto basis = detail::scalar_basis(levels);
  const auto absent = x.isfinite().all(-1).logical_not();
  auto indices = at::zeros(absent.sizes(), x.options().dtype(at::kLong));
  std::vector<at::Tensor> columns;
  int64_t start = 0;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto own = table.narrow(0, start, levels[j]);
    const auto level = nearest_level(wide.select(-1, static_cast<int64_t>(j)), own);
    columns.push_back(own.index_select(0, level.reshape({-1})).view(level.sizes()));
    indices.add_(level * basis[j]);
    start += levels[j];
  }
  indices.masked_fill_(absent, 0);
  auto codes = at::stack(columns, -1).to(detail::compute_dtype(x));
  codes.masked_fill_(absent.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());
  auto squares = (wide - codes).square().sum(-1);
  auto number = at::scalar_tensor(std::max<int64_t>(x.numel(), 1), squares.options());
  if (mask) {
    const auto padding = mask->logical_not();
    indices.masked_fill_(padding, -1);
    codes.masked_fill_(padding.unsqueeze(-1), 0);
    squares.masked_fill_(padding, 0);
    number = (mask->sum() * x.size(-1)).clamp_min(1).to(squares.scalar_type());
  }
  return {codes, indices,
          (squares.sum() / number * (commitment + quantization)).to(codes.scalar_type())};
}

std::tuple<at::Tensor, at::Tensor> latent_quantize_backward(
    const at::Tensor& grad_codes, const at::Tensor& grad_loss, const at::Tensor& x,
    const at::Tensor& codes, const at::Tensor& indices, at::IntArrayRef levels, double commitment,
    double quantization) {
  detail::check_latent_quantize_backward(grad_codes, grad_loss, x, codes, indices, levels);
  const auto dtype = detail::sum_dtype(x);
  const auto padding = indices.lt(0).unsqueeze(-1);
  const auto number = (padding.logical_not().sum() * x.size(-1)).clamp_min(1);
  const auto scale = grad_loss.to(dtype) * 2 / number;
  const auto rest = (x.to(dtype) - codes.to(dtype)).masked_fill_(padding, 0);
  const auto straight = grad_codes.to(dtype).masked_fill(padding, 0);
  auto grad_x = (straight + rest * (scale * commitment)).to(x.scalar_type());
  const auto real = at::where(rest.isfinite(), rest, 0);
  const auto digits = ops::scalar_level_indices(indices, levels).clamp_min(0);
  auto grad_values = at::zeros({detail::count_values(levels)}, real.options());
  int64_t start = 0;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto feature = static_cast<int64_t>(j);
    const auto column = real.select(-1, feature).reshape({-1, 1});
    const auto own =
        detail::sum_by_index(column, digits.select(-1, feature).reshape({-1}), levels[j]);
    grad_values.narrow(0, start, levels[j]).copy_(own.squeeze(-1));
    start += levels[j];
  }
  return {grad_x, (grad_values * (scale * -quantization)).to(codes.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("latent_quantize", latent_quantize);
  m.impl("latent_quantize_backward", latent_quantize_backward);
}

}  // namespace torchvq
