// Any device: plain ATen, the reference for the CPU kernels; scalar_decode has no other.
#include "ops/scalar_decode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <ATen/ops/tensor.h>
#include <torch/library.h>

#include <torchvq/ops/scalar_decode.h>

#include "detail/scalar_levels.h"

namespace torchvq {
namespace {

at::Tensor scalar_level_indices(const at::Tensor& indices, at::IntArrayRef levels) {
  detail::check_scalar_level_indices(indices, levels);
  const auto basis = at::tensor(detail::scalar_basis(levels), indices.options());
  const auto digits = at::div(indices.unsqueeze(-1), basis, "floor")
                          .remainder(at::tensor(levels, indices.options()));
  return digits.masked_fill(indices.lt(0).unsqueeze(-1), -1);
}

at::Tensor scalar_indices(const at::Tensor& level_indices, at::IntArrayRef levels) {
  detail::check_scalar_indices(level_indices, levels);
  const auto basis = at::tensor(detail::scalar_basis(levels), level_indices.options());
  return (level_indices * basis).sum(-1).masked_fill(level_indices.lt(0).any(-1), -1);
}

at::Tensor scalar_decode(const at::Tensor& indices, at::IntArrayRef levels, bool symmetric,
                         at::ScalarType dtype) {
  detail::check_scalar_decode(indices, levels, dtype);
  std::vector<double> centres, divisors;
  for (const int64_t count : levels) {
    const auto rule = detail::scalar_rule(count, symmetric);
    centres.push_back(rule.centre);
    divisors.push_back(rule.divisor);
  }
  const auto digits = ops::scalar_level_indices(indices, levels);
  const auto number = digits.to(at::kDouble) * (symmetric ? 2 : 1);
  const auto codes =
      (number - at::tensor(centres, number.options())) / at::tensor(divisors, number.options());
  return codes.masked_fill(digits.lt(0), 0).to(dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("scalar_level_indices", scalar_level_indices);
  m.impl("scalar_indices", scalar_indices);
  m.impl("scalar_decode", scalar_decode);
}

}  // namespace torchvq
