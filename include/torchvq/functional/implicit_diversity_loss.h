// The codebook diversity loss of implicit codebooks.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::functional {

/// Minus the entropy of the codes' average probability; codes of the same index count as the same.
///
/// Formula      p[t] = softmax over k of -temperature |x_t - c_tk|;
///              P = mean of p[t] over the unmasked tokens of all ranks; loss = sum_k P_k log(P_k)
///
/// @param x            (T, 1, D), floating point: each token is a separate head.
/// @param codes        (T, K, D), each token's codes.
/// @param temperature  multiplies the distances; larger is sharper.
/// @param mask         (T, 1), bool; True marks a real token. Default: all real.
/// @param options      on several ranks, one differentiable all-reduce of K + 1 numbers.
/// @return             (), dtype of x.
///
/// Gradient     to x and codes through ordinary autograd. Tokens that are not finite take no part.
/// Memory       O(T K D), like the codes themselves.
/// Empty        no token on any rank: 0.
TORCHVQ_API at::Tensor implicit_diversity_loss(const at::Tensor& x, const at::Tensor& codes,
                                               double temperature,
                                               const std::optional<at::Tensor>& mask = std::nullopt,
                                               const distributed::SyncOptions& options = {});

}  // namespace torchvq::functional
