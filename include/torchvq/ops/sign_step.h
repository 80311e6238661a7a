// A training step of lookup-free quantization on its latents, as one operator: signs, entropies,
// losses, and one gradient of all of them.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Weights of the terms of the loss.
struct SignStepWeights {
  double entropy = 0.1, diversity_gamma = 1, commitment = 0;
};

/// What a step is told.
struct SignStepOptions {
  double scale = 1;      ///< the magnitude of each feature of a code, see sign_quantize.h
  double sharpness = 0;  ///< see sign_entropy.h
  SignStepWeights weights;
};

/// Result of sign_step().
struct SignStepResult {
  at::Tensor codes;    ///< (C, T, D)
  at::Tensor indices;  ///< (C, T), int64
  at::Tensor loss, per_sample, batch, commitment;
};

/// Takes the signs of latents, and scores them.
///
/// Formula      loss = entropy * (per_sample - diversity_gamma * batch) + commitment * distance
///              by the weights, with the entropies of sign_entropy.h, and distance the mean
///              of (latents - codes)^2.
///
/// @param latents       (C, T, D), floating point; D in [1, 62].
/// @param mask          (C, T), bool: tokens in the commitment. Default: all.
/// @param entropy_mask  (C, T) or (T,), bool: tokens in the entropies. Default: all.
/// @param totals        as for sign_entropy(). Default: those of this process.
/// @return              numbers in float64 for float64 latents, otherwise float32; a commitment
///                      without weight is 0.
///
/// Gradient     to latents: of codes straight through, of the numbers in closed form; the
///              entropies once differentiable, the others twice.
/// Ties, Empty, Non-finite, Determinism, Distributed   as sign_quantize() and sign_entropy().
/// Throws       c10::ValueError for bad shapes and options, c10::TypeError for bad dtypes,
///              c10::NotImplementedError in backward of an entropy with create_graph=True.
TORCHVQ_API SignStepResult sign_step(const at::Tensor& latents, const SignStepOptions& options,
                                     const std::optional<at::Tensor>& mask = std::nullopt,
                                     const std::optional<at::Tensor>& entropy_mask = std::nullopt,
                                     const std::optional<at::Tensor>& totals = std::nullopt);

}  // namespace torchvq::ops
