// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/scalar_quantize.h"

#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh_backward.h>
#include <torch/library.h>

#include "detail/device_table.h"

namespace torchvq {
namespace {

struct Column {
  at::Tensor codes, levels;
};

template <typename T>
Column quantize_column(const at::Tensor& x, int64_t count, detail::ScalarBound bound) {
  const auto known = detail::scalar_levels<T>(count, bound);
  const auto changes = detail::device_table(known->changes, x.options());
  const auto table = detail::device_table(known->codes, x.options());
  const auto found = at::bucketize(x, changes, /*out_int32=*/false, /*right=*/true);
  const auto levels = found.clamp(0, count - 1);  // for NaN, the result does not matter
  return {table.index_select(0, levels.reshape({-1})).view(levels.sizes()), levels};
}

std::tuple<at::Tensor, at::Tensor> scalar_quantize(const at::Tensor& x_, at::IntArrayRef levels,
                                                   std::string_view bound_name) {
  const auto bound = detail::check_scalar_quantize(x_, levels, bound_name);
  const auto x = x_.to(detail::compute_dtype(x_));
  const auto basis = detail::scalar_basis(levels);
  auto indices = x.new_zeros(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kLong));
  std::vector<at::Tensor> codes;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto values = x.select(-1, static_cast<int64_t>(j)).contiguous();
    const auto column = x.scalar_type() == at::kDouble
                            ? quantize_column<double>(values, levels[j], bound)
                            : quantize_column<float>(values, levels[j], bound);
    indices.add_(column.levels * basis[j]);
    codes.push_back(column.codes);
  }
  const auto absent = x.isfinite().all(-1).logical_not_();
  return {at::stack(codes, -1).masked_fill_(absent.unsqueeze(-1),
                                            std::numeric_limits<double>::quiet_NaN()),
          indices.masked_fill_(absent, 0)};
}

/// d code / d x without the rounding.
at::Tensor slope(const at::Tensor& x, at::IntArrayRef levels, detail::ScalarBound bound) {
  std::vector<double> gains, shifts;
  for (const int64_t count : levels) {
    const auto formula = detail::scalar_formula(count, bound);
    gains.push_back(formula.gain);
    shifts.push_back(formula.shift);
  }
  const auto gain = detail::device_table(gains, x.options());
  const auto shifted = x + detail::device_table(shifts, x.options());
  if (!detail::is_tanh(bound)) return gain * shifted.abs().le(1);
  return at::tanh_backward(gain, shifted.tanh());
}

}  // namespace

at::Tensor detail::scalar_quantize_backward_any(const at::Tensor& grad, const at::Tensor& x,
                                                at::IntArrayRef levels,
                                                std::string_view bound_name) {
  const auto bound = detail::check_scalar_quantize_backward(grad, x, levels, bound_name);
  const auto wide = x.to(detail::compute_dtype(x));
  return (grad * slope(wide, levels, bound)).to(x.scalar_type()).contiguous();
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("scalar_quantize_backward", detail::scalar_quantize_backward_any);
  m.impl("scalar_quantize", scalar_quantize);
}

}  // namespace torchvq
