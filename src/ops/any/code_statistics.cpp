// Any device: plain ATen, the reference for the CPU kernel. Integer scatter_add is independent of
// order, so atomics on a GPU give the same bits.
#include "ops/code_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "detail/exponents.h"
#include "detail/index_range.h"
#include "kernels/exponents.h"

namespace torchvq {
namespace {

/// Number of elements that are converted to float64 and int64 at a time.
int64_t elements_at_once(const at::Tensor& x) {
  return x.is_cpu() ? int64_t{1} << 21 : int64_t{1} << 26;
}

/// Whether all features of a token can be added up; only float64 has larger ones that are finite.
at::Tensor are_summed(const at::Tensor& x) {
  if (x.scalar_type() != at::kDouble) return x.isfinite().all(-1);
  return detail::can_be_summed(x).all(-1);
}

at::Tensor raise_exponents(const at::Tensor& x, const at::Tensor& slots, const at::Tensor& counted,
                           const at::Tensor& exponents) {
  const auto absent = counted.logical_not();
  const auto magnitude = x.abs().amax(-1).masked_fill(absent, 0);
  const auto own = detail::exponent_of(magnitude);
  auto largest = exponents.new_full(exponents.sizes(), kernels::kMinExponent);
  largest.scatter_reduce_(1, slots, own, "amax");
  return at::where(largest.gt(exponents + kernels::kHeadroomBits), largest, exponents);
}

void add_chunk(const at::Tensor& x, const at::Tensor& slots, const at::Tensor& counted,
               const at::Tensor& exponents, at::Tensor& sums) {
  const auto scale = detail::power_of_two(exponents.gather(1, slots).neg().add(kernels::kUnitBits));
  const auto scaled = x.to(at::kDouble)
                          .mul(scale.unsqueeze(-1))
                          .masked_fill_(counted.logical_not().unsqueeze(-1), 0);
  const auto whole = scaled.round();
  const auto rows = slots.unsqueeze(-1).expand(x.sizes());
  sums[0].scatter_add_(1, rows, whole.to(at::kLong));
  if (sums.size(0) == 2) {
    const auto rest = scaled.sub(whole).mul_(4294967296.0).round_();
    sums[1].scatter_add_(1, rows, rest.to(at::kLong));
  }
}

detail::StatisticsTensors code_statistics(const at::Tensor& x, const at::Tensor& indices,
                                          const at::Tensor& exponents,
                                          const std::optional<at::Tensor>& mask) {
  detail::check_code_statistics(x, indices, exponents, mask);
  const int64_t heads = x.size(0), tokens = x.size(1), dim = x.size(2), size = exponents.size(1);
  auto present = indices.ne(-1);
  if (mask.has_value()) present = present.logical_and(*mask);
  // Other negative indices are kept, so that scatter reports them as out of bounds.
  const auto slots = indices.masked_fill(present.logical_not(), 0);
  detail::check_index_range("code_statistics", "indices", slots, size);
  const auto counted = present.logical_and(are_summed(x));

  const auto counts =
      indices.new_zeros({heads, size}).scatter_add_(1, slots, counted.to(at::kLong));
  const auto used = raise_exponents(x, slots, counted, detail::clamp_exponents(exponents));
  auto sums = indices.new_zeros({detail::sum_words(x.scalar_type()), heads, size, dim});
  const int64_t chunk =
      std::max<int64_t>(1, elements_at_once(x) / std::max<int64_t>(1, heads * dim));
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    add_chunk(x.narrow(1, begin, count), slots.narrow(1, begin, count),
              counted.narrow(1, begin, count), used, sums);
  }
  return {counts, sums, used};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("code_statistics", code_statistics);
}

}  // namespace torchvq
