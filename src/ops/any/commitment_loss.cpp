// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/commitment_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "detail/precision.h"

namespace torchvq {
namespace {

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss(x, codes, mask);
  const auto sum_dtype = detail::sum_dtype(x), dtype = detail::value_dtype(x, codes);
  auto difference = x.to(sum_dtype) - codes.to(sum_dtype);
  if (!mask.has_value()) {
    const auto count = std::max<int64_t>(difference.numel(), 1);
    return detail::divided(difference.square_().sum(), static_cast<double>(count)).to(dtype);
  }
  difference.masked_fill_(mask->logical_not().unsqueeze(-1), 0);
  const auto count = (mask->sum() * x.size(2)).clamp_min(1);
  return (difference.square_().sum() / count).to(dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("commitment_loss", commitment_loss);
}

}  // namespace torchvq
