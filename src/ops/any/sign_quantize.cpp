// Any device: plain ATen, the reference for the CPU kernels.
#include "ops/sign_quantize.h"

#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "detail/precision.h"

namespace torchvq {
namespace {

/// Significance of each bit: D - 1 ... 0.
at::Tensor places(int64_t bits, const at::TensorOptions& options) {
  return at::arange(bits - 1, -1, -1, options.dtype(at::kLong));
}

std::tuple<at::Tensor, at::Tensor> sign_quantize(const at::Tensor& x, double scale) {
  detail::check_sign_quantize(x, scale);
  const auto set = x > 0;
  const auto absent = x.isfinite().logical_not().any(-1);
  const auto options = x.options().dtype(detail::value_dtype(x, x));
  const auto codes =
      at::where(set, at::scalar_tensor(scale, options), at::scalar_tensor(-scale, options));
  const auto indices =
      set.to(at::kLong).bitwise_left_shift(places(x.size(-1), x.options())).sum(-1);
  return {codes.masked_fill(absent.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN()),
          indices.masked_fill(absent, 0)};
}

at::Tensor sign_decode(const at::Tensor& indices, int64_t bits, double scale,
                       std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_sign_decode(indices, bits, scale, dtype);
  const auto shifted =
      indices.unsqueeze(-1).bitwise_right_shift(places(bits, indices.options())).bitwise_and(1);
  const auto options = indices.options().dtype(dtype);
  const auto codes = at::where(shifted.to(at::kBool), at::scalar_tensor(scale, options),
                               at::scalar_tensor(-scale, options));
  return codes.masked_fill(indices.lt(0).unsqueeze(-1), 0);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("sign_quantize", sign_quantize);
  m.impl("sign_decode", sign_decode);
}

}  // namespace torchvq
