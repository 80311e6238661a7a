// First half of replace_dead_codes_() for several ranks: each selects from its own tokens.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Selects the tokens that may replace dead codes.
///
/// Ranks put their results side by side on axis 1 (one all-gather of fixed size) and pass them to
/// replace_with_candidates_(). With `count` = codebook size the outcome is that of one process with
/// all tokens.
///
/// @param x       (H, N, D), floating point.
/// @param rng     (2,), int64: (seed, step), the same on all ranks.
/// @param count   candidates per head, >= 1.
/// @param mask    (H, N) or (N,), bool, true for real tokens. Default: all.
/// @param metric  "euclidean" or "cosine" (rows are unit vectors, zero tokens are left out).
///                Default: "euclidean".
/// @return        keys (H, count), int64, rising, the largest int64 where there are fewer distinct
///                usable tokens; rows (H, count, D), float64 for float64 tokens, otherwise float32,
///                zero where there is no key.
///
/// Gradient, determinism and errors as for replace_dead_codes_().
TORCHVQ_API std::pair<at::Tensor, at::Tensor> dead_code_candidates(
    const at::Tensor& x, const at::Tensor& rng, int64_t count,
    const std::optional<at::Tensor>& mask = std::nullopt, const std::string& metric = "euclidean");

}  // namespace torchvq::ops
