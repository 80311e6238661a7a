// The search with tensor operators, in which a device decides the rows left open by
// the product in its own way.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "ops/nearest_code.h"

namespace torchvq::detail {

/// Rows of a head, and the results of the product that screened them.
struct OpenRows {
  at::Tensor rows;      ///< (n, D), as read by the contract's scores
  at::Tensor codes;     ///< (K, D), likewise
  at::Tensor bias;      ///< (K,) float64, as added to the score, or undefined
  at::Tensor excluded;  ///< (K,) bool
  at::Tensor scores;    ///< (n, K) float64, -infinity for codes that were not screened
  at::Tensor limit;     ///< (n,) float64; scores above are not among the k best; NaN: all may be
  bool cosine = false;
  int64_t k = 1;
};

/// The k nearest codes (n, k), ties by index.
using DecideRows = std::function<at::Tensor(const OpenRows&)>;

/// nearest_code() of x, from which `problem` was made: in plain ATen, or
/// with `decide` for all rows.
NearestCodeTensors nearest_code_by(const at::Tensor& x, const NearestCodeProblem& problem,
                                   std::optional<int64_t> topk, bool return_codes,
                                   bool return_distances, const DecideRows& decide);

}  // namespace torchvq::detail
