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
  detail::check_replace_with_candidates_(
      {embed, embed_avg, cluster_size, cooldown}, keys, rows, counts, rng,
      {threshold, threshold_fraction, reset_cluster_size, cooldown_steps, replace_used});
  return counts.new_empty_symint({embed.sym_size(0)});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("replace_with_candidates_", replace_with_candidates_);
}

}  // namespace torchvq
