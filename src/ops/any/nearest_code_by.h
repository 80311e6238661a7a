// The search in tensor operators with a device's own way to decide rows that a product leaves open.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "ops/nearest_code.h"

namespace torchvq::detail {

/// Rows of a head, and what a product tells of them.
struct OpenRows {
  at::Tensor rows;      ///< (n, D), as the contract's scores read them
  at::Tensor codes;     ///< (K, D), likewise
  at::Tensor bias;      ///< (K,) float64, as it is added to the score, or undefined
  at::Tensor excluded;  ///< (K,) bool
  at::Tensor scores;    ///< (n, K) float64, -infinity for codes that the product does not tell of
  at::Tensor limit;     ///< (n,) float64; a score above is not among the k best; NaN: all may be
  bool cosine = false;
  int64_t k = 1;
};

/// The k nearest codes (n, k), ties by index.
using DecideRows = std::function<at::Tensor(const OpenRows&)>;

/// nearest_code() of x, which made `problem`, in plain ATen, or with `decide` for all rows.
NearestCodeTensors nearest_code_by(const at::Tensor& x, const NearestCodeProblem& problem,
                                   std::optional<int64_t> topk, bool return_codes,
                                   bool return_distances, const DecideRows& decide);

}  // namespace torchvq::detail
