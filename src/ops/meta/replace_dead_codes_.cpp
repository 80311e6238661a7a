#include "ops/replace_dead_codes_.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor replace_dead_codes_(at::Tensor& embed, at::Tensor& embed_avg, at::Tensor& cluster_size,
                               at::Tensor& cooldown, const at::Tensor& x, const at::Tensor& counts,
                               const at::Tensor& rng, const std::optional<at::Tensor>& mask,
                               double threshold, double threshold_fraction,
                               double reset_cluster_size, int64_t cooldown_steps,
                               std::string_view metric) {
  detail::check_replace_dead_codes_(
      {embed, embed_avg, cluster_size, cooldown}, x, counts, rng, mask,
      {threshold, threshold_fraction, reset_cluster_size, cooldown_steps}, metric);
  return counts.new_empty_symint({embed.sym_size(0)});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("replace_dead_codes_", replace_dead_codes_); }

}  // namespace torchvq
