// CPU: steps without a dead code do not read the tokens, and the others write the codes that they
// replace alone.
#include "ops/replace_dead_codes_.h"

#include <vector>

#include <ATen/ops/cat.h>
#include <torch/library.h>

#include "detail/row_keys.h"
#include "ops/cpu/dead_codes.h"

namespace torchvq {
namespace {

at::Tensor replace_in(const detail::CodebooksWithTokens& codebooks, size_t i,
                      const detail::DeadCodeArguments& rules, bool unit) {
  const auto state = codebooks.state(i);
  const auto &counts = codebooks.counts[i], &rng = codebooks.rng[i];
  const auto codes = detail::find_dead_codes(state, counts, rules);
  // Most steps have no dead code; on CPU the check needs no synchronisation.
  if (!codes.dead.any().item<bool>()) return counts.new_zeros({counts.size(0)});
  const auto rows = detail::rows_as_codes(codebooks.x[i], unit);
  const auto keys = detail::candidate_keys(rows, rng, codebooks.mask_of(i), unit);
  const auto most = detail::most_replaced(codes.dead, counts, rules);
  return detail::replace_codes_on_cpu(state, codes, most, keys, rows, rng, rules);
}

at::Tensor replace_dead_codes_(at::TensorList embed, at::TensorList embed_avg,
                               at::TensorList cluster_size, at::TensorList x, at::TensorList counts,
                               at::TensorList rng, at::TensorList mask, double threshold,
                               double threshold_fraction, double reset_cluster_size,
                               std::string_view metric, bool replace_used,
                               std::optional<double> most_per_token) {
  const detail::CodebooksWithTokens codebooks{embed, embed_avg, cluster_size, x, counts, rng, mask};
  const detail::DeadCodeArguments rules{threshold, threshold_fraction, reset_cluster_size,
                                        replace_used, most_per_token};
  const bool unit = detail::check_replace_dead_codes_(codebooks, rules, metric);
  std::vector<at::Tensor> replaced;
  for (size_t i = 0; i < codebooks.size(); ++i)
    replaced.push_back(replace_in(codebooks, i, rules, unit));
  return replaced.size() == 1 ? replaced[0] : at::cat(replaced);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("replace_dead_codes_", replace_dead_codes_); }

}  // namespace torchvq
