// Codes of independent bits as one-hot vectors: draws, their gradient, and their information.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Draws a code for each token, with independent bits.
///
/// Formula      bit h is 1 where u < sigmoid(logits[h] / temperature), u uniform in (0, 1);
///              index = sum over h of bit h * 2^h. Without rng: bit h is 1 where logits[h] > 0.
/// Paper        Fleuret 2025, The Free Transformer, arXiv:2510.17558, section 3.4
///
/// @param logits       (*, H), floating point, H in [1, 30].
/// @param rng          (2,), int64, see random_numbers.h; empty: no randomness.
/// @param temperature  finite, 0 or more; 0 gives the same as no rng.
/// @param mask         (*), bool, true for real tokens. The draws of a token depend on the number
///                     of real tokens before it, so that padding changes nothing.
/// @return             (*), int64; -1 where masked, 0 for a token with NaN or infinity.
///
/// Gradient     none.
/// Exactness    u < sigmoid(l / T) is computed as l > T (log u - log(1 - u)) in float64, with the
///              same logarithm on every device, so indices are the same on every device.
/// Throws       c10::ValueError, c10::TypeError for bad arguments.
TORCHVQ_API at::Tensor binary_sample(const at::Tensor& logits, const std::optional<at::Tensor>& rng,
                                     double temperature = 1.0,
                                     const std::optional<at::Tensor>& mask = std::nullopt);

/// One-hot vectors of codes of bits, with the gradient of the codes' probabilities.
///
/// Formula      output[*, k] = 1 where k is the index, else 0
/// Gradient     to the logits as if the output were P[k] = product over h of sigmoid(l_h / T) where
///              bit h of k is 1, 1 - sigmoid(l_h / T) where it is 0. P is a Kronecker product of H
///              pairs: folding bit after bit takes 2^(H + 1) products per token, and forward saves
///              nothing of size 2^H for backward. Zero for index -1 and T = 0. Not differentiable
///              again.
/// Paper        Fleuret 2025, arXiv:2510.17558, equation 8
///
/// @param logits   (*, H), floating point, H in [1, 30].
/// @param indices  (*), int64, in [-1, 2^H); -1 gives zeros.
/// @return         (*, 2^H), dtype of logits; NaN for a token with NaN or infinity.
///
/// Throws       c10::IndexError for an index out of range (on CPU), c10::ValueError,
///              c10::TypeError.
TORCHVQ_API at::Tensor binary_one_hot(const at::Tensor& logits, const at::Tensor& indices,
                                      double temperature = 1.0);

/// The information in the bits of a token beyond a free allowance.
///
/// Formula      max(0, sum over h of (log 2 - H(sigmoid(l_h))) - threshold), in nats: the
///              divergence from the uniform distribution over codes; H is the entropy of a bit
/// Paper        Fleuret 2025, arXiv:2510.17558, equation 9 (free bits: Kingma et al. 2016)
///
/// @param threshold  kappa, the free nats per token; not NaN.
/// @param mask       (*), bool, true for real tokens.
/// @param reduce     whether to return the mean over real tokens, 0 without any; otherwise one
///                   value per token, 0 where masked.
/// @return           scalar, or (*); float64 for float64 logits, otherwise float32.
///
/// Gradient     of the formula, 0 at the threshold. Not differentiable again.
TORCHVQ_API at::Tensor binary_kl_loss(const at::Tensor& logits, double threshold = 0.0,
                                      const std::optional<at::Tensor>& mask = std::nullopt,
                                      bool reduce = true);

}  // namespace torchvq::ops
