// Options of FSP. The names, meanings and defaults are those of the Python class.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of an FSP module.
///
/// Example:
/// ```
/// torchvq::FSP quantizer(torchvq::FSPOptions({8, 5, 5, 5}).act_name("normal").vector_norm("var"));
/// ```
struct TORCHVQ_API FSPOptions {
  /// @param levels  bins of each feature, each 2 to 65536, product at most 2^62.
  explicit FSPOptions(std::vector<int64_t> levels) : levels_(std::move(levels)) {}

  /// Throws c10::ValueError for an option out of range.
  void validate() const;

  TORCH_ARG(std::vector<int64_t>, levels);
  /// Features of the input. If it differs from the number of levels, project_in and project_out are
  /// linear layers. Default: the number of levels.
  TORCH_ARG(std::optional<int64_t>, dim);
  /// Features on axis 1; otherwise on the last. Default: false.
  TORCH_ARG(bool, channel_first) = false;
  /// Whether the projections have a bias. Default: true.
  TORCH_ARG(bool, projection_has_bias) = true;
  /// The distribution: tanh, sigmoid, normal, laplace or cauchy. Default: "tanh".
  TORCH_ARG(std::string, act_name) = "tanh";
  /// Probability that a feature is quantized instead of perturbed in training, in [0, 1]. Default:
  /// 0.
  TORCH_ARG(double, quantize_rate) = 0.0;
  /// Apply the inverse of the activation to the codes. Default: false.
  TORCH_ARG(bool, need_inv_act) = false;
  /// Moments that the loss pulls: none, var, kurt, var_tanh, var_sigmoid or var_laplace.
  /// Default: "var_tanh".
  TORCH_ARG(std::string, vector_norm) = "var_tanh";
  /// Whether ranks that train together compute the moments over the tokens of all ranks. Default:
  /// in training, if the group has several ranks; never with vqp_compat.
  TORCH_ARG(std::optional<bool>, sync_statistics);
  /// The name of the group of these ranks. Default: distributed::default_group().
  TORCH_ARG(std::optional<std::string>, process_group);
  /// Behave as vector-quantize-pytorch: moments of each rank's own tokens, unless sync_statistics;
  /// int32 indices, if the codebook has less than 2^31 codes. Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

/// Options of one forward.
struct TORCHVQ_API FSPForwardOptions {
  /// With need_inv_act, activations are kept in [eps, 1 - eps] before the inverse. Default: 1e-6.
  TORCH_ARG(double, eps) = 1e-6;
  /// (B, *), bool, true for real tokens. Default: all.
  TORCH_ARG(std::optional<at::Tensor>, mask);
};

}  // namespace torchvq
