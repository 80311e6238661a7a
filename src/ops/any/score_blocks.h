// The loop of sample_codes over heads and blocks of tokens, shared by its kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torchvq/ops/nearest_code.h>

#include "detail/precision.h"
#include "ops/any/code_logits.h"

namespace torchvq::detail {

/// The scores (n, K) of tokens (n, 1, D) and codes (n, K, D) of their own; see CodeLogits.
inline at::Tensor own_code_scores(const at::Tensor& x, const at::Tensor& codebook, Metric metric) {
  const auto dtype = sum_dtype(x);
  const auto tokens = x.to(dtype), codes = codebook.to(dtype);
  if (metric == Metric::kEuclidean) return tokens.sub(codes).norm(2, -1).neg();
  const auto unit = [](const at::Tensor& rows) {
    return rows.div(rows.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12));
  };
  return unit(codes).mul(unit(tokens)).sum(-1);
}

/// Whether all codes are finite, if that is known without waiting for the device.
inline bool known_finite(const at::Tensor& codebook) {
  return codebook.is_cpu() && std::isfinite(codebook.sum().item<double>());
}

/// choose(scores (n, K), position of the first score among all H * N * K) returns (n, k) indices;
/// k is 1 without topk. Codes that are not finite have the score minus infinity.
///
/// @param own_scores  own_code_scores(), or a faster one.
template <typename OwnScores, typename Choose>
at::Tensor choose_by_score(const at::Tensor& x, const at::Tensor& codebook_, Metric metric,
                           std::optional<int64_t> topk, const OwnScores& own_scores,
                           const Choose& choose) {
  const int64_t heads = x.size(0), tokens = x.size(1), size = codebook_.size(1);
  auto codebook = codebook_;
  at::Tensor excluded;  // (H, K), undefined if all codes are finite
  if (!known_finite(codebook)) {
    excluded = codebook.isfinite().all(-1).logical_not_();
    codebook = codebook.masked_fill(excluded.unsqueeze(-1), 0);
  }
  const auto ranked = [&](const at::Tensor& scores, int64_t head, int64_t rows) {
    if (!excluded.defined()) return scores;
    constexpr double kLast = -std::numeric_limits<double>::infinity();
    return scores.masked_fill(excluded.narrow(0, head, rows), kLast);
  };
  const int64_t block = tokens_per_block(codebook);
  auto indices = at::empty({heads, tokens, topk.value_or(1)}, x.options().dtype(at::kLong));
  if (tokens == 1 && heads > 1) {
    // Codes of each token: a product for each would take longer than its scores.
    const int64_t own_block = std::max<int64_t>(1, block / std::max<int64_t>(1, x.size(2)));
    for (int64_t from = 0; from < heads; from += own_block) {
      const int64_t rows = std::min(own_block, heads - from);
      const auto scores =
          own_scores(x.narrow(0, from, rows), codebook.narrow(0, from, rows), metric);
      indices.narrow(0, from, rows)
          .squeeze(1)
          .copy_(choose(ranked(scores, from, rows), from * size));
    }
    return topk ? indices : indices.squeeze(-1);
  }
  for (int64_t h = 0; h < heads; ++h) {
    const CodeLogits scores(codebook[h], metric);
    for (int64_t from = 0; from < tokens; from += block) {
      const int64_t rows = std::min(block, tokens - from);
      const auto part = scores.forward(x[h].narrow(0, from, rows));
      indices[h]
          .narrow(0, from, rows)
          .copy_(choose(ranked(part.logits, h, 1), (h * tokens + from) * size));
    }
  }
  return topk ? indices : indices.squeeze(-1);
}

/// The choice at temperature 0.
inline at::Tensor nearest_codes(const at::Tensor& x, const at::Tensor& codebook, Metric metric,
                                std::optional<int64_t> topk) {
  const auto* name = metric == Metric::kCosine ? "cosine" : "euclidean";
  return ops::nearest_code(x, codebook, ops::NearestCodeOptions().metric(name).topk(topk)).indices;
}

}  // namespace torchvq::detail
