// Any device: plain ATen.
#include "ops/replace_with_candidates_.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor replace_with_candidates_(at::Tensor& embed, at::Tensor& embed_avg,
                                    at::Tensor& cluster_size, at::Tensor& cooldown,
                                    const at::Tensor& keys, const at::Tensor& rows,
                                    const at::Tensor& counts, const at::Tensor& rng,
                                    double threshold, double threshold_fraction,
                                    double reset_cluster_size, int64_t cooldown_steps,
                                    bool replace_used) {
  const detail::CodebookState state{embed, embed_avg, cluster_size, cooldown};
  detail::check_replace_with_candidates_(
      state, keys, rows, counts, rng,
      {threshold, threshold_fraction, reset_cluster_size, cooldown_steps, replace_used});
  const auto limits = detail::dead_code_limits(cluster_size, threshold, threshold_fraction);
  const auto dead = detail::dead_codes(state, counts, limits, replace_used);
  detail::count_down(cooldown, counts);
  return detail::replace_codes(state, dead, keys, rows, rng, limits.clamp_min(reset_cluster_size),
                               cooldown_steps);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("replace_with_candidates_", replace_with_candidates_);
}

}  // namespace torchvq
