// Entropy and log-probabilities of codes of independent bits (ops/binary_codes.h).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Entropy in nats of the codes that logits (*, H) describe: (*), with gradient.
TORCHVQ_API at::Tensor binary_entropy(const at::Tensor& logits);

/// Log-probability of codes under logits (*, H), with gradient to the logits.
///
/// @param indices   (*), int64, in [0, 2^H), or -1, whose log-probability is 0.
/// @param one_hot   (*, 2^H) instead of indices; the largest entry is the code.
/// @param sum_bits  one value per token (*); otherwise one per bit (*, H).
///
/// Throws  c10::ValueError unless exactly one of indices and one_hot is given and shapes fit.
TORCHVQ_API at::Tensor binary_log_prob(const at::Tensor& logits,
                                       const std::optional<at::Tensor>& indices,
                                       const std::optional<at::Tensor>& one_hot = std::nullopt,
                                       bool sum_bits = true);

}  // namespace torchvq::functional
