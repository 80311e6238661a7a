// Options of BinaryMapper. The names, meanings and defaults are those of the Python class.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of a BinaryMapper module.
///
/// Example:
/// ```
/// torchvq::BinaryMapper mapper(torchvq::BinaryMapperOptions(8).kl_loss_threshold(0.7));
/// ```
struct TORCHVQ_API BinaryMapperOptions {
  explicit BinaryMapperOptions(int64_t bits = 1) : bits_(bits) {}

  /// Throws c10::ValueError for an option out of range.
  void validate() const;

  /// Number of logits H, 1 to 30.
  TORCH_ARG(int64_t, bits);
  /// Nats per token below which the divergence from the uniform distribution costs nothing.
  /// Default: log 2.
  TORCH_ARG(double, kl_loss_threshold) = 0.69314718055994531;
  /// Whether evaluation takes the likelier bits instead of drawing. Default: true, but false with
  /// vqp_compat.
  TORCH_ARG(std::optional<bool>, deterministic_on_eval);
  /// Behave as vector-quantize-pytorch: evaluation draws unless deterministic_on_eval, and the
  /// gradient ignores the temperature. Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

/// Options of one forward.
struct TORCHVQ_API BinaryMapperForwardOptions {
  /// Temperature of the draws and of the gradient, 0 or more. Default: 1.
  TORCH_ARG(double, temperature) = 1.0;
  /// Whether the output has the gradient of the codes' probabilities. Default: in training.
  TORCH_ARG(std::optional<bool>, straight_through);
  /// Whether to compute the loss; otherwise it is 0. Default: in training.
  TORCH_ARG(std::optional<bool>, calc_aux_loss);
  /// Take the likelier bits instead of drawing. Default: in evaluation, if deterministic_on_eval.
  TORCH_ARG(std::optional<bool>, deterministic);
  /// The mean of the loss over tokens; otherwise one value per token. Default: true.
  TORCH_ARG(bool, reduce_aux_kl_loss) = true;
  /// (*), bool, true for real tokens. Default: all.
  TORCH_ARG(std::optional<at::Tensor>, mask);
};

}  // namespace torchvq
