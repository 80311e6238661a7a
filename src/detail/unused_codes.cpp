#include "detail/unused_codes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include "detail/codebook_average.h"
#include "detail/precision.h"
#include "kernels/unused_below.h"

namespace torchvq::detail {

at::Tensor unused_codes(const at::Tensor& sizes, double decay) {
  const auto total = order_free_totals(sizes.to(at::kDouble));
  const auto wait = (kernels::kPatience * static_cast<double>(sizes.size(-1)) / total)
                        .ceil_()
                        .clamp_max_(kernels::kLongestWait);
  const auto left = at::pow(decay, wait - 1).mul_((1 - decay) * ((1 + decay) / 2));
  const auto limit = left.clamp_max_(kernels::gone_below(decay));
  // Sizes are rounded, and lie half a step from the limit, so that its last bits do not matter.
  return sizes.to(at::kDouble).lt(limit).logical_and_(total.gt(0));
}

at::Tensor draw_unused_codes(const at::Tensor& codes, const at::Tensor& sizes,
                             const at::Tensor& unused, const at::Tensor& step, bool unit) {
  const auto order = std::get<1>(
      at::sort(sizes.masked_fill(unused, -1), /*stable=*/true, /*dim=*/-1, /*descending=*/true));
  const auto used = unused.logical_not().sum(-1, /*keepdim=*/true);
  const auto rank = (unused.cumsum(-1) - 1).clamp_min(0);
  const auto targets = order.gather(-1, rank.remainder(used.clamp_min(1)));
  const auto from = codes.to(at::kDouble);
  const auto heaviest = from.gather(-2, targets.unsqueeze(-1).expand(codes.sizes()));
  auto drawn = narrowed(from + step.unsqueeze(-1) * (heaviest - from), codes.scalar_type());
  if (unit) drawn = unit_rows(drawn).to(codes.scalar_type());
  return at::where(unused.logical_and(used.gt(0)).unsqueeze(-1), drawn, codes);
}

}  // namespace torchvq::detail
