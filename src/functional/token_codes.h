// Search among codes that differ for each token (implicit codebooks, QINCo).
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torchvq::functional {

/// Finds the nearest of each token's own codes.
///
/// @param x         (H, T, D), float32 or float64.
/// @param codebook  (H, T, K, D), floating point. For cosine, the codes are normalized.
/// @param topk      returns the k best on a trailing axis: indices (H, T, k), codes (H, T, k, D).
///                  Default: one, without that axis.
/// @return          indices (H, T), int64, lowest index on ties; codes (H, T, D), with gradient to
///                  codebook.
std::tuple<at::Tensor, at::Tensor> nearest_token_code(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      const std::string& metric,
                                                      std::optional<int64_t> topk = std::nullopt);

}  // namespace torchvq::functional
