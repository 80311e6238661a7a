// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/scalar_perturb.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/special_ndtr.h>
#include <ATen/ops/special_ndtri.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/library.h>
#include <torchvq/ops/scalar_decode.h>
#include <torchvq/random_purpose.h>

#include "detail/device_table.h"
#include "detail/float64.h"
#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "detail/random_tensor.h"
#include "detail/scalar_levels.h"

namespace torchvq {
namespace {

using detail::CodeForm;
using detail::Distribution;
using OptionalTensor = std::optional<at::Tensor>;

const double kRoot12 = std::sqrt(12.0);
constexpr double kPi = 3.14159265358979323846;

at::Tensor density_of(Distribution kind, const at::Tensor& x) {
  switch (kind) {
    case Distribution::kTanh: {
      const auto e = (x.abs() * -2).exp();
      return 2 * e / (1 + e).square();
    }
    case Distribution::kSigmoid: {
      const auto e = x.abs().neg().exp();
      return e / (1 + e).square();
    }
    case Distribution::kNormal:
      return detail::divided((x.square() / -2).exp(), std::sqrt(2 * kPi));
    case Distribution::kLaplace:
      return x.abs().neg().exp() / 2;
    default:
      return detail::divided((1 + x.square()).reciprocal(), kPi);
  }
}

/// Uniform numbers for each feature; tokens are numbered without padding.
at::Tensor uniform(const at::Tensor& rng, const at::Tensor& x, const OptionalTensor& mask,
                   int64_t stream) {
  const int64_t dim = x.size(-1);
  const auto shape = x.sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  const auto options = x.options().dtype(at::kLong);
  const auto tokens = mask ? mask->flatten().cumsum(0, at::kLong).sub_(1).view(shape)
                           : at::arange(x.numel() / dim, options).view(shape);
  const auto positions = tokens.unsqueeze(-1) * dim + at::arange(dim, options);
  const auto key = detail::random_key(rng, static_cast<int64_t>(RandomPurpose::kNoise), stream);
  return detail::uniform_from_bits(detail::random_bits(key, positions), 24);
}

at::Tensor of_form(const at::Tensor& u, detail::PerturbKind kind, double eps) {
  if (kind.form == CodeForm::kAct) return u;
  if (kind.form == CodeForm::kUnit) return (u - 0.5) * kRoot12;
  return detail::quantile_any(kind.cdf, u.clamp(eps, 1 - eps));
}

/// (codes, levels) of bin centres, computed feature by feature.
template <typename T>
std::pair<at::Tensor, at::Tensor> bin_centres(const at::Tensor& x, at::IntArrayRef levels,
                                              detail::PerturbKind kind, double eps) {
  std::vector<at::Tensor> codes, numbers;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto known = detail::perturb_levels<T>(levels[j], kind.cdf, kind.form, eps);
    const auto column = x.select(-1, static_cast<int64_t>(j)).contiguous();
    const auto level = at::bucketize(column, detail::device_table(known->changes, x.options()),
                                     /*out_int32=*/false, /*right=*/true);
    numbers.push_back(level);
    codes.push_back(detail::device_table(known->codes, x.options())
                        .index_select(0, level.clamp_max(levels[j] - 1).reshape({-1}))
                        .view(level.sizes()));
  }
  return {at::stack(codes, -1), at::stack(numbers, -1)};
}

}  // namespace

at::Tensor detail::cumulative_any(Distribution kind, const at::Tensor& x) {
  switch (kind) {
    case Distribution::kTanh:
      return x.add(x).sigmoid_();  // a number would become a tensor first
    case Distribution::kSigmoid:
      return x.sigmoid();
    case Distribution::kNormal:
      return at::special_ndtr(x);
    case Distribution::kLaplace: {
      // Not -|x|, whose derivative at 0 is 0, while the density there is 1/2.
      const auto below = x.lt(0);
      const auto half = at::where(below, x, -x).exp() / 2;
      return at::where(below, half, 1 - half);
    }
    default:
      return detail::divided(x.atan(), kPi).add_(0.5);
  }
}

at::Tensor detail::quantile_any(Distribution kind, const at::Tensor& u) {
  switch (kind) {
    case Distribution::kTanh:
      return u.logit() / 2;
    case Distribution::kSigmoid:
      return u.logit();
    case Distribution::kNormal:
      return at::special_ndtri(u);
    case Distribution::kLaplace:
      return at::where(u.lt(0.5), (2 * u).log(), -(2 * (1 - u)).log());
    default: {
      // Near the ends, the tangent of u - 1/2 has lost all digits.
      const auto low = u.lt(0.5);
      const auto tail = at::where(low, u, 1 - u);
      const auto far = (tail * kPi).tan().reciprocal();
      return at::where(tail.lt(0.25), at::where(low, -far, far), ((u - 0.5) * kPi).tan());
    }
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> detail::scalar_perturb_any(
    const at::Tensor& x_, at::IntArrayRef levels, const OptionalTensor& rng, double quantize_rate,
    std::string_view cdf, std::string_view form, double eps, const OptionalTensor& mask) {
  const auto kind =
      detail::check_scalar_perturb(x_, levels, rng, quantize_rate, cdf, form, eps, mask);
  const auto absent = x_.isfinite().all(-1).logical_not();
  const auto x = x_.to(detail::compute_dtype(x_)).masked_fill(absent.unsqueeze(-1), 0);
  auto [codes, numbers] = x.scalar_type() == at::kDouble ? bin_centres<double>(x, levels, kind, eps)
                                                         : bin_centres<float>(x, levels, kind, eps);
  auto acceptance = at::ones({}, x.options());
  if (rng && quantize_rate < 1) {
    detail::check_float64("scalar_perturb", x);
    const auto counts = detail::device_table(levels, x.options());
    const auto u = cumulative_any(kind.cdf, x);
    const auto moved = u + ((uniform(*rng, x, mask, 0) - 0.5) / counts).to(u.scalar_type());
    const auto inside = moved.ge(0).logical_and(moved.le(1));
    auto perturbed = at::ones_like(inside);
    if (quantize_rate > 0) perturbed = uniform(*rng, x, mask, 1).ge(quantize_rate);
    codes = at::where(perturbed, of_form(at::where(inside, moved, u), kind, eps), codes);
    perturbed = perturbed.logical_and(absent.logical_not().unsqueeze(-1));
    if (mask) perturbed = perturbed.logical_and(mask->unsqueeze(-1));
    const auto number = perturbed.sum();
    const auto kept = perturbed.logical_and(inside).sum();
    // In float64: torch divides integers in the default dtype.
    const auto share = (kept + number.eq(0)).to(at::kDouble) / number.clamp_min(1);
    acceptance = share.to(x.scalar_type());
  }
  numbers.masked_fill_(absent.unsqueeze(-1), 0);
  codes.masked_fill_(absent.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());
  if (mask) {
    const auto padding = mask->logical_not().unsqueeze(-1);
    numbers.masked_fill_(padding, -1);
    codes.masked_fill_(padding, 0);
  }
  return {codes, numbers, ops::scalar_indices(numbers, levels), acceptance};
}

namespace {

at::Tensor scalar_perturb_backward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& indices, std::string_view cdf,
                                   std::string_view form) {
  const auto kind = detail::check_scalar_perturb_backward(grad, x, indices, cdf, form);
  const auto dtype = detail::compute_dtype(x);
  auto slope = grad.to(dtype);
  if (kind.form != CodeForm::kInverse) {
    const double scale = kind.form == CodeForm::kUnit ? kRoot12 : 1.0;
    slope = slope * density_of(kind.cdf, x.to(dtype)) * scale;
  }
  return slope.masked_fill(indices.lt(0).unsqueeze(-1), 0).to(x.scalar_type());
}

template <typename T>
at::Tensor centroids(const at::Tensor& digits, at::IntArrayRef levels, detail::PerturbKind kind,
                     double eps, const at::TensorOptions& options) {
  std::vector<at::Tensor> columns;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto known = detail::perturb_levels<T>(levels[j], kind.cdf, kind.form, eps);
    const auto level = digits.select(-1, static_cast<int64_t>(j)).clamp_min(0);
    columns.push_back(detail::device_table(known->codes, options)
                          .index_select(0, level.reshape({-1}))
                          .view(level.sizes()));
  }
  return at::stack(columns, -1).masked_fill_(digits.lt(0), 0);
}

at::Tensor scalar_centroids(const at::Tensor& indices, at::IntArrayRef levels, std::string_view cdf,
                            std::string_view form, double eps,
                            std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  const auto kind = detail::check_scalar_centroids(indices, levels, cdf, form, eps, dtype);
  const auto digits = ops::scalar_level_indices(indices, levels);
  const auto options = indices.options().dtype(dtype);
  return dtype == at::kDouble ? centroids<double>(digits, levels, kind, eps, options)
                              : centroids<float>(digits, levels, kind, eps, options);
}

at::Tensor scalar_act_levels(const at::Tensor& act, at::IntArrayRef levels) {
  detail::check_scalar_act_levels(act, levels);
  const auto counts = detail::device_table(levels, act.options().dtype(at::kLong));
  const auto level = (act.to(at::kDouble) * counts).floor().nan_to_num(0).clamp(0, 65535);
  return level.to(at::kLong).minimum(counts - 1).contiguous();
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("scalar_perturb", detail::scalar_perturb_any);
  m.impl("scalar_perturb_backward", scalar_perturb_backward);
  m.impl("scalar_centroids", scalar_centroids);
  m.impl("scalar_act_levels", scalar_act_levels);
}

}  // namespace torchvq
