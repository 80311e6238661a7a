// Any device: plain ATen, the reference for the CPU kernels.
#include "ops/scalar_decode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/div.h>
#include <torch/library.h>

#include <torchvq/ops/scalar_decode.h>

#include "detail/device_table.h"
#include "detail/scalar_levels.h"

namespace torchvq {
namespace {

at::Tensor scalar_level_indices(const at::Tensor& indices, at::IntArrayRef levels) {
  detail::check_scalar_level_indices(indices, levels);
  const auto basis = detail::device_table(detail::scalar_basis(levels), indices.options());
  const auto digits = at::div(indices.unsqueeze(-1), basis, "floor")
                          .remainder(detail::device_table(levels, indices.options()));
  return digits.masked_fill(indices.lt(0).unsqueeze(-1), -1);
}

at::Tensor scalar_indices(const at::Tensor& level_indices, at::IntArrayRef levels) {
  detail::check_scalar_indices(level_indices, levels);
  const auto basis = detail::device_table(detail::scalar_basis(levels), level_indices.options());
  return (level_indices * basis).sum(-1).masked_fill(level_indices.lt(0).any(-1), -1);
}

/// code = (level * factor - centre) / divisor, as float64 (D,) each.
struct Rules {
  Rules(at::IntArrayRef levels, bool symmetric, const at::Tensor& like) {
    std::vector<double> centres, divisors;
    for (const int64_t count : levels) {
      const auto rule = detail::scalar_rule(count, symmetric);
      factor = rule.factor;
      centres.push_back(rule.centre);
      divisors.push_back(rule.divisor);
    }
    centre = detail::device_table(centres, like.options().dtype(at::kDouble));
    divisor = detail::device_table(divisors, like.options().dtype(at::kDouble));
  }

  double factor = 1;
  at::Tensor centre, divisor;
};

at::Tensor scalar_decode(const at::Tensor& indices, at::IntArrayRef levels, bool symmetric,
                         std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_scalar_decode(indices, levels, dtype);
  const Rules rules(levels, symmetric, indices);
  const auto digits = ops::scalar_level_indices(indices, levels);
  const auto codes = (digits.to(at::kDouble) * rules.factor - rules.centre) / rules.divisor;
  return codes.masked_fill(digits.lt(0), 0).to(dtype);
}

at::Tensor scalar_code_indices(const at::Tensor& codes, at::IntArrayRef levels, bool symmetric) {
  detail::check_scalar_code_indices(codes, levels);
  const Rules rules(levels, symmetric, codes);
  const auto absent = codes.isnan().any(-1, /*keepdim=*/true);
  const auto number = (codes.to(at::kDouble) * rules.divisor + rules.centre) / rules.factor;
  const auto last = detail::device_table(levels, codes.options().dtype(at::kDouble)) - 1;
  const auto digits = number.round().clamp_min(0).minimum(last).masked_fill(absent, 0);
  return ops::scalar_indices(digits.to(at::kLong), levels);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("scalar_level_indices", scalar_level_indices);
  m.impl("scalar_indices", scalar_indices);
  m.impl("scalar_decode", scalar_decode);
  m.impl("scalar_code_indices", scalar_code_indices);
}

}  // namespace torchvq
