// Any device: plain ATen.
#include "ops/replace_with_candidates_.h"

#include <vector>

#include <ATen/ops/cat.h>
#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor replace_with_candidates_(at::TensorList embed, at::TensorList embed_avg,
                                    at::TensorList cluster_size, at::TensorList keys,
                                    at::TensorList rows, at::TensorList counts, at::TensorList rng,
                                    double threshold, double threshold_fraction,
                                    double reset_cluster_size, bool replace_used,
                                    std::optional<double> most_per_token) {
  const detail::CodebooksWithCandidates codebooks{embed, embed_avg, cluster_size, keys,
                                                  rows,  counts,    rng};
  const detail::DeadCodeArguments rules{threshold, threshold_fraction, reset_cluster_size,
                                        replace_used, most_per_token};
  detail::check_replace_with_candidates_(codebooks, rules);
  std::vector<at::Tensor> replaced;
  for (size_t i = 0; i < codebooks.size(); ++i) {
    const auto state = codebooks.state(i);
    const auto codes = detail::find_dead_codes(state, counts[i], rules);
    const auto most = detail::most_replaced(codes.dead, counts[i], rules);
    replaced.push_back(detail::replace_codes(state, codes, most, keys[i], rows[i], rng[i], rules));
  }
  return at::cat(replaced);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("replace_with_candidates_", replace_with_candidates_);
}

}  // namespace torchvq
