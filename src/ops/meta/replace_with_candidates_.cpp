#include "ops/replace_with_candidates_.h"

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
  detail::check_replace_with_candidates_(
      codebooks, {threshold, threshold_fraction, reset_cluster_size, replace_used, most_per_token});
  c10::SymInt heads = 0;
  for (const auto& own : embed) heads = heads + own.sym_size(0);
  return counts[0].new_empty_symint({heads});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("replace_with_candidates_", replace_with_candidates_);
}

}  // namespace torchvq
