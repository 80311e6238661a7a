// Argument checks of replace_with_candidates_, called by every kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/replace_dead_codes_.h"

namespace torchvq::detail {

/// Several codebooks and their candidates, a tensor each in every list.
struct CodebooksWithCandidates {
  at::TensorList embed;
  at::TensorList embed_avg;
  at::TensorList cluster_size;
  at::TensorList keys;
  at::TensorList rows;
  at::TensorList counts;
  at::TensorList rng;

  [[nodiscard]] size_t size() const { return embed.size(); }
  [[nodiscard]] DeadCodeState state(size_t codebook) const {
    return {embed[codebook], embed_avg[codebook], cluster_size[codebook]};
  }
};

void check_replace_with_candidates_(const CodebooksWithCandidates& codebooks,
                                    const DeadCodeArguments& arguments);

}  // namespace torchvq::detail
