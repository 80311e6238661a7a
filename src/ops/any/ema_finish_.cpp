// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/ema_finish_.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <torch/library.h>

#include "detail/codebook_average.h"
#include "detail/codebook_state.h"
#include "detail/unused_codes.h"
#include "kernels/unused_below.h"

namespace torchvq {
namespace {

void ema_finish_(at::Tensor& embed, const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                 double decay, double eps, std::string_view metric) {
  const bool unit = detail::check_ema_finish_(embed, cluster_size, embed_avg, decay, eps, metric);
  // In float32 the limit would be rounded.
  const auto faint = cluster_size.to(at::kDouble).lt(kernels::faint_below(decay));
  const auto codes = detail::codes_from_averages(
      embed, embed_avg, detail::smoothed_sizes(cluster_size, eps), faint, unit);
  const auto unused = detail::unused_codes(cluster_size, decay);
  const auto step = at::full_like(cluster_size, kernels::kDrawn, at::kDouble);
  embed.copy_(detail::draw_unused_codes(codes, cluster_size, unused, step, unit));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("ema_finish_", ema_finish_); }

}  // namespace torchvq
