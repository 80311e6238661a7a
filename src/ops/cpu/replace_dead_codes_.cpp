// CPU: steps without a dead code do not read the tokens, and the others write the codes that they
// replace alone.
#include "ops/replace_dead_codes_.h"

#include <torch/library.h>

#include "detail/row_keys.h"
#include "ops/cpu/dead_codes.h"

namespace torchvq {
namespace {

at::Tensor replace_dead_codes_(at::Tensor& embed, at::Tensor& embed_avg, at::Tensor& cluster_size,
                               at::Tensor& cooldown, const at::Tensor& x, const at::Tensor& counts,
                               const at::Tensor& rng, const std::optional<at::Tensor>& mask,
                               double threshold, double threshold_fraction,
                               double reset_cluster_size, int64_t cooldown_steps,
                               std::string_view metric) {
  const detail::CodebookState state{embed, embed_avg, cluster_size, cooldown};
  const bool unit = detail::check_replace_dead_codes_(
      state, x, counts, rng, mask,
      {threshold, threshold_fraction, reset_cluster_size, cooldown_steps}, metric);
  const auto limits = detail::dead_code_limits(cluster_size, threshold, threshold_fraction);
  const auto dead = detail::dead_codes(state, counts, limits);
  cooldown.sub_(1).clamp_min_(0);
  // Most steps have no dead code; on CPU the check needs no synchronisation.
  if (!dead.any().item<bool>()) return counts.new_zeros({embed.size(0)});
  const auto rows = detail::rows_as_codes(x, unit);
  const auto keys = detail::candidate_keys(rows, rng, mask, unit);
  return detail::replace_codes_on_cpu(state, dead, keys, rows, rng,
                                      limits.clamp_min(reset_cluster_size), cooldown_steps);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("replace_dead_codes_", replace_dead_codes_); }

}  // namespace torchvq
