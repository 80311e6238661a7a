// Search among codes that differ from token to token (implicit codebooks, QINCo).
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::functional {

/// Nearest of each token's own codes.
///
/// @param x         (H, T, D), float32 or float64.
/// @param codebook  (H, T, K, D), floating point. Cosine: the codes are made unit vectors.
/// @param topk      the k best on a trailing axis of indices (H, T, k) and of codes (H, T, k, D).
/// Default: one, without.
/// @return          indices (H, T), int64, lowest index on ties; codes (H, T, D), with gradient to
/// codebook.
std::tuple<at::Tensor, at::Tensor> nearest_token_code(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      const std::string& metric,
                                                      std::optional<int64_t> topk = std::nullopt);

}  // namespace torchvq::functional
