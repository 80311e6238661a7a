// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/code_exponents.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "detail/exponents.h"

namespace torchvq {
namespace {

at::Tensor code_exponents(const at::Tensor& codebook) {
  detail::check_code_exponents(codebook);
  const auto magnitude = codebook.abs().amax(-1);
  const auto counted = magnitude.isfinite().logical_and(magnitude.gt(0));
  const auto own =
      detail::exponent_of(magnitude.masked_fill(counted.logical_not(), 0)).to(at::kLong);
  const auto sum = own.masked_fill(counted.logical_not(), 0).sum(-1, /*keepdim=*/true);
  const auto mean = sum.div(counted.sum(-1, /*keepdim=*/true).clamp_min(1), "floor");
  return at::where(counted, at::maximum(own, mean), mean).to(at::kInt);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("code_exponents", code_exponents);
}

}  // namespace torchvq
