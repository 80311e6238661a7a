// Any device: plain ATen; reads nothing on the host.
#include "ops/replace_dead_codes_.h"

#include <vector>

#include <ATen/ops/cat.h>
#include <torch/library.h>

namespace torchvq {
namespace {

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
  for (size_t i = 0; i < codebooks.size(); ++i) {
    const auto state = codebooks.state(i);
    const auto codes = detail::find_dead_codes(state, counts[i], rules);
    const auto most = detail::most_replaced(codes.dead, counts[i], rules);
    const auto [keys, rows] =
        detail::select_candidates(x[i], rng[i], embed[i].size(1), codebooks.mask_of(i), unit);
    replaced.push_back(detail::replace_codes(state, codes, most, keys, rows, rng[i], rules));
  }
  return at::cat(replaced);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("replace_dead_codes_", replace_dead_codes_);
}

}  // namespace torchvq
