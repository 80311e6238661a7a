// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/ema_finish_.h"

#include <torch/library.h>

#include "detail/codebook_average.h"
#include "detail/codebook_state.h"

namespace torchvq {
namespace {

void ema_finish_(at::Tensor& embed, const at::Tensor& cluster_size, const at::Tensor& embed_avg,
                 double eps, std::string_view metric) {
  const bool unit = detail::check_ema_finish_(embed, cluster_size, embed_avg, eps, metric);
  const auto keep = cluster_size.lt(detail::kSmallestUpdatedCluster);
  embed.copy_(detail::codes_from_averages(embed, embed_avg,
                                          detail::smoothed_sizes(cluster_size, eps), keep, unit));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("ema_finish_", ema_finish_); }

}  // namespace torchvq
