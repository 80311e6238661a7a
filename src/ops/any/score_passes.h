// Passes over blocks of scores. In memory, several tensor operators become one loop with the same
// bits: blocks exceed the caches, so that each operator costs a read and a write of memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// squares (n, K), in place: -sqrt(squares), and 0 where a square is at most `noise` times its
/// length, the sum of lengths `codes` (1, K) and `tokens` (n, 1).
void negative_distances_(at::Tensor& squares, const at::Tensor& codes, const at::Tensor& tokens,
                         double noise);

/// grad (n, K), in place: grad / scores, and 0 where a score is 0.
void divide_by_scores_(at::Tensor& grad, const at::Tensor& scores);

/// p (n, K), in place: p (log_mean - mean) weight, for log_mean (K,), mean (n, 1), weight (); 0 in
/// rows where `masked` (n, 1), if defined, is true.
void diversity_slopes_(at::Tensor& p, const at::Tensor& log_mean, const at::Tensor& mean,
                       const at::Tensor& weight, const at::Tensor& masked);

}  // namespace torchvq::detail
