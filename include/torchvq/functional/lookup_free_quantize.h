// One forward of lookup-free quantization between its projections: signs, entropies, losses.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/lookup_free.h>

namespace torchvq::functional {

/// The inputs of a forward apart from the tokens.
struct LookupFreeArguments {
  std::optional<at::Tensor> mask;      ///< (B, N), bool
  std::optional<at::Tensor> rotation;  ///< (D, D), orthogonal: applied to latents before the signs
  /// (2,), int64: generator that draws the tokens for the entropies. Default: all tokens.
  std::optional<at::Tensor> rng;
  /// Codes have the gradient of this function of latents (C, T, D). Default: the identity.
  std::function<at::Tensor(const at::Tensor&)> activation;
};

/// Options of the functions below.
struct LookupFreeOptions {
  /// The features of x are on axis 1 instead of the last. Default: false.
  TORCH_ARG(bool, channel_first) = false;
  /// Codebooks, over which the features are split. Default: 1.
  TORCH_ARG(int64_t, codebooks) = 1;
  /// The magnitude of each feature of a code. Default: 1.
  TORCH_ARG(double, scale) = 1;
  /// Latents are projected to the sphere of this radius. Default: none.
  TORCH_ARG(std::optional<double>, radius);
  /// Bounds latents to plus and minus this by tanh. Default: none.
  TORCH_ARG(std::optional<double>, soft_clamp);
  /// Fraction of the tokens that a generator draws for the entropies, in (0, 1]. Default: 1.
  TORCH_ARG(double, fraction) = 1;
  /// Inverse temperature of the soft assignment in the entropies, 0 or more; larger is sharper.
  /// Default: 100.
  TORCH_ARG(double, inv_temperature) = 100;
  /// Whether the gradient of the codes goes straight through to the latents. Default: false.
  TORCH_ARG(bool, estimates) = false;
  /// Whether there are losses. Default: false.
  TORCH_ARG(bool, scores) = false;
  TORCH_ARG(LookupFreeWeights, weights);
  /// The entropies of the reference, and its treatment of padding, which is quantized. Default:
  /// false.
  TORCH_ARG(bool, vqp_compat) = false;
  /// The ranks that share the entropies. Default: none but this process.
  TORCH_ARG(distributed::SyncOptions, ranks);
};

/// Tokens, codes and indices, one row per codebook.
struct LookupFreeSigns {
  at::Tensor latents;                      ///< (C, T, D), float32 or float64
  at::Tensor codes;                        ///< (C, T, D), without gradient
  at::Tensor indices;                      ///< (C, T), int64
  std::optional<at::Tensor> mask;          ///< (C, T), bool
  std::optional<at::Tensor> entropy_mask;  ///< (C, T), or (T,), bool: tokens in the entropies
};

/// The weighted loss and its terms, scalars; zeros without scores.
struct LookupFreeLosses {
  at::Tensor loss;
  at::Tensor per_sample_entropy;
  at::Tensor batch_entropy;
  at::Tensor commitment;
};

/// Result of lookup_free_quantize().
struct LookupFreeStep {
  at::Tensor quantized;  ///< as x: its layout and dtype
  at::Tensor indices;    ///< (B, *), with several codebooks (B, *, C); -1 where masked
  LookupFreeLosses losses;
  LookupFreeSigns signs;
  std::optional<at::Tensor> totals;  ///< the sums of all ranks for the entropies
};

/// Takes signs, and computes the losses.
///
/// @param x       (B, *, C * D), or as the options say, floating point: projected tokens.
/// @param totals  the sums over ranks of the forward that this one recomputes. Default: none.
///
/// Gradient     of quantized to x, with `estimates`, that of the activation; of the losses to x.
/// Ties         a feature of 0 is an unset bit.
/// Empty        no tokens, or all masked: losses 0.
/// Non-finite   a token with NaN or infinity gives NaN and index 0.
/// Distributed  with ranks one all-reduce; none with `totals`, or without scores.
/// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes.
TORCHVQ_API LookupFreeStep lookup_free_quantize(
    const at::Tensor& x, const LookupFreeArguments& arguments, const LookupFreeOptions& options,
    const std::optional<at::Tensor>& totals = std::nullopt);

/// The sums of these tokens that ranks add up for the entropies; see ops/sign_entropy.h.
TORCHVQ_API at::Tensor lookup_free_totals(const LookupFreeSigns& signs,
                                          const LookupFreeOptions& options);

/// Only the losses of a step, for quantizers that add up their totals together.
TORCHVQ_API LookupFreeLosses lookup_free_losses(const LookupFreeSigns& signs,
                                                const std::optional<at::Tensor>& totals,
                                                const LookupFreeOptions& options);

}  // namespace torchvq::functional
