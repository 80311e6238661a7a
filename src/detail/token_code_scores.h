// The scores of codes that each token has for itself, by the kernel that decides nearest_code.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/Parallel.h>

#include "kernels/cpu/nearest_code_exact.h"

namespace torchvq::detail {

/// Calls visit(token, scores of its codes) for every token, on several threads; the scores are
/// those of kernels::NearestCodeExact::pair_scores().
///
/// @param rows   (tokens, dim), contiguous.
/// @param codes  (tokens, size, dim), contiguous.
template <typename Visit>
void visit_token_code_scores(const float* rows, const float* codes, int64_t tokens, int64_t size,
                             int64_t dim, bool cosine, const Visit& visit) {
  constexpr int64_t kProductsPerTask = int64_t{1} << 16;
  const auto kernel = kernels::nearest_code_exact(kernels::cpu_level());
  const int64_t grain = 1 + kProductsPerTask / (size * dim + 1);
  at::parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    std::vector<const float*> own(static_cast<size_t>(size));
    std::vector<double> scores(own.size());
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t k = 0; k < size; ++k) {
        own[static_cast<size_t>(k)] = codes + (token * size + k) * dim;
      }
      kernel.pair_scores(rows + token * dim, dim, own.data(), size, cosine, scores.data());
      visit(token, scores);
    }
  });
}

}  // namespace torchvq::detail
