// Passes over codes, tokens and blocks of scores (n, K). In memory, several tensor operators become one loop over rows
// (kernels/cpu/score_rows.h): blocks exceed the caches, so that each operator costs a read and a write of memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The mean of rows (n, D) of any floating dtype, (1, D), in sum_dtype().
at::Tensor mean_row(const at::Tensor& rows);

struct CentredRows {
  at::Tensor rows;     ///< (n, D)
  at::Tensor squares;  ///< (n, 1): their squared lengths
};

/// rows (n, D) of any floating dtype less `centre` (1, D), in the dtype of `centre`.
CentredRows centred_rows(const at::Tensor& rows, const at::Tensor& centre);

/// Squared lengths of rows (*, D), (*, 1). In memory by parts whose squares stay in the cache; each row is summed as in
/// the whole.
at::Tensor squared_norms(const at::Tensor& rows);

/// products (n, K) of tokens and codes, in place: minus their distances, for the squared lengths `codes` (1, K) and
/// `tokens` (n, 1). A squared distance of at most `noise` times the sum of both lengths counts as 0.
void negative_distances_(at::Tensor& products, const at::Tensor& codes, const at::Tensor& tokens,
                         double noise);

/// grad (n, K), in place: grad / scores, and 0 where a score is 0.
void divide_by_scores_(at::Tensor& grad, const at::Tensor& scores);

/// Sum over tokens of softmax(temperature * scores), (K,). Rows where `masked` (n, 1), if defined, is true do not count.
at::Tensor probability_totals(const at::Tensor& scores, double temperature,
                              const at::Tensor& masked);

/// p (log_mean - sum over codes of p log_mean) weight, (n, K), for p = softmax(temperature * scores), log_mean (K,) and
/// weight (); 0 in rows where `masked` (n, 1), if defined, is true.
at::Tensor diversity_slopes(const at::Tensor& scores, double temperature,
                            const at::Tensor& log_mean, const at::Tensor& weight,
                            const at::Tensor& masked);

struct CrossEntropies {
  at::Tensor losses;  ///< (n, 1)
  at::Tensor
      slopes;  ///< (n, K), their gradient to the scores times `weight`; undefined if not wanted
};

/// Cross-entropies of softmax(scores) with targets (n, 1); `weight` is (). 0 in rows where `counted` (n, 1) is false,
/// whose targets may be anything in [0, K).
CrossEntropies cross_entropies(const at::Tensor& scores, const at::Tensor& targets,
                               const at::Tensor& counted, const at::Tensor& weight,
                               bool wants_slopes);

}  // namespace torchvq::detail
