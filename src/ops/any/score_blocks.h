// The loop of sample_codes over heads and blocks of tokens, shared by its kernels.
#pragma once

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torchvq/ops/nearest_code.h>

#include "ops/any/code_logits.h"

namespace torchvq::detail {

/// choose(scores (n, K), position of the first score among all H * N * K) returns (n,) indices.
template <typename Choose>
at::Tensor choose_by_score(const at::Tensor& x, const at::Tensor& codebook, Metric metric,
                           const Choose& choose) {
  const int64_t heads = x.size(0), tokens = x.size(1), size = codebook.size(1);
  const int64_t block = tokens_per_block(codebook);
  auto indices = at::empty({heads, tokens}, x.options().dtype(at::kLong));
  for (int64_t h = 0; h < heads; ++h) {
    const CodeLogits scores(codebook[h], metric);
    for (int64_t from = 0; from < tokens; from += block) {
      const int64_t rows = std::min(block, tokens - from);
      const auto part = scores.forward(x[h].narrow(0, from, rows));
      indices[h].narrow(0, from, rows).copy_(choose(part.logits, (h * tokens + from) * size));
    }
  }
  return indices;
}

/// The choice at temperature 0.
inline at::Tensor nearest_codes(const at::Tensor& x, const at::Tensor& codebook, Metric metric) {
  const auto* name = metric == Metric::kCosine ? "cosine" : "euclidean";
  return ops::nearest_code(x, codebook, ops::NearestCodeOptions().metric(name)).indices;
}

}  // namespace torchvq::detail
