// Any device: plain ATen, the reference for the CPU kernel. Everything is computed
// before anything is written.
#include "ops/ema_update_.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "detail/codebook_average.h"
#include "detail/codebook_state.h"
#include "detail/fixed_point.h"
#include "detail/precision.h"
#include "detail/unused_codes.h"
#include "kernels/unused_below.h"

namespace torchvq {
namespace {

at::Tensor decayed(const at::Tensor& average, const at::Tensor& weight, const at::Tensor& value) {
  const auto before = average.to(at::kDouble);
  return (before + weight * (value - before)).to(average.scalar_type());
}

void ema_update_(at::Tensor& cluster_size, at::Tensor& embed_avg, at::Tensor& embed,
                 const at::Tensor& counts, const at::Tensor& sums, const at::Tensor& exponents,
                 double decay, double eps, std::string_view metric,
                 const std::optional<at::Tensor>& weight, bool from_codebook, bool finish) {
  const bool unit = detail::check_ema_update_(
      cluster_size, embed_avg, embed, {counts, sums, exponents, decay, eps, metric, weight});
  const auto dtype = embed.scalar_type();
  const auto given = weight.has_value()
                         ? weight->to(at::kDouble).expand(counts.sizes())
                         : at::ones(counts.sizes(), counts.options().dtype(at::kDouble));
  // A head without tokens does not change.
  const auto idle = counts.sum(-1, /*keepdim=*/true).eq(0);
  const auto step = given * (1.0 - decay);
  const auto size = decayed(cluster_size, step, counts.to(at::kDouble));
  // Sums beyond the range of the state are clamped.
  const double most = detail::largest(dtype);
  const auto start =
      from_codebook ? detail::narrowed(embed.to(at::kDouble) *
                                           detail::smoothed_sizes(cluster_size, eps).unsqueeze(-1),
                                       dtype)
                    : embed_avg;
  const auto sum = detail::decode_to_double(sums, exponents, at::kDouble);
  const auto average = decayed(start, step.unsqueeze(-1), sum).clamp(-most, most);
  auto codes = embed;
  if (finish) {
    const auto without = counts.eq(0).logical_and_(idle.logical_not());
    // In float32 the limit would be rounded.
    const auto few = size.to(at::kDouble).lt(kernels::faint_below(decay));
    const auto faint = counts.eq(0).logical_and(few);
    codes = detail::codes_from_averages(embed, average, detail::smoothed_sizes(size, eps),
                                        faint.logical_or(idle), unit);
    const auto unused = without.logical_and_(detail::unused_codes(size, decay));
    // kernels::drawn_by
    const auto share = step.div(1.0 - decay).clamp_(0, 1).mul_(kernels::kDrawn);
    codes = detail::draw_unused_codes(codes, size, unused, share, unit);
  }
  embed.copy_(codes);
  embed_avg.copy_(at::where(idle.unsqueeze(-1), embed_avg, average));
  cluster_size.copy_(at::where(idle, cluster_size, size));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("ema_update_", ema_update_); }

}  // namespace torchvq
