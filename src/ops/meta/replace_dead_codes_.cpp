#include "ops/replace_dead_codes_.h"

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
  detail::check_replace_dead_codes_(codebooks, rules, metric);
  c10::SymInt heads = 0;
  for (const auto& own : embed) heads = heads + own.sym_size(0);
  return counts[0].new_empty_symint({heads});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("replace_dead_codes_", replace_dead_codes_); }

}  // namespace torchvq
