// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/token_moments.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include "detail/precision.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor without_padding(const at::Tensor& rows, const OptionalTensor& mask) {
  return mask ? rows.masked_fill(mask->reshape({-1, 1}).logical_not(), 0) : rows;
}

at::Tensor token_moments(const at::Tensor& x, const OptionalTensor& mask) {
  detail::check_token_moments(x, mask);
  const auto rows =
      without_padding(x.to(detail::sum_dtype(x))
                          .reshape({x.numel() / std::max<int64_t>(x.size(-1), 1), x.size(-1)}),
                      mask);
  const auto count = mask ? mask->sum().to(rows.scalar_type()).reshape({1})
                          : at::full({1}, static_cast<double>(rows.size(0)), rows.options());
  const auto mean = rows.sum(0) / count.clamp_min(1);
  const auto rest = without_padding(rows - mean, mask), square = rest.square();
  return at::cat({count, mean, square.sum(0), (square * rest).sum(0), square.square().sum(0)});
}

at::Tensor token_moments_backward(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& moments, const OptionalTensor& mask) {
  detail::check_token_moments_backward(grad, x, moments, mask);
  const int64_t dim = x.size(-1);
  const auto part = [&](const at::Tensor& of, int64_t k) { return of.narrow(0, 1 + k * dim, dim); };
  const auto count = moments.narrow(0, 0, 1).clamp_min(1);
  const auto rest = x.to(moments.scalar_type()) - part(moments, 0);
  const auto slopes = part(grad, 0) / count + part(grad, 1) * 2 * rest +
                      part(grad, 2) * 3 * (rest.square() - part(moments, 1) / count) +
                      part(grad, 3) * 4 * (rest.pow(3) - part(moments, 2) / count);
  const auto filled = mask ? slopes.masked_fill(mask->logical_not().unsqueeze(-1), 0) : slopes;
  return filled.to(x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("token_moments", token_moments);
  m.impl("token_moments_backward", token_moments_backward);
}

}  // namespace torchvq
