// The gradient estimators by name, for codes that are already chosen.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Options of estimate().
struct EstimateOptions {
  /// "none" (the gradient goes only to the codes), "straight_through", "rotation_trick",
  /// "vqp_rotation_trick" or "directional_reparam". Default: "straight_through".
  TORCH_ARG(std::string, estimator) = "straight_through";
  /// Variance of the noise on the direction of "directional_reparam", 0 or more. Default: 0.005.
  TORCH_ARG(double, variance) = 0.005;
  /// Extra gradient of the synchronous update, nu in Huh et al. 2023, in [0, 1]. Default: 0.
  TORCH_ARG(double, sync_update_v) = 0.0;
};

/// The values of the codes with the gradient of the estimator
/// (docs/design/estimators-and-losses.md).
///
/// @param x, codes  (H, T, D).
/// @param rng       (2,), int64: seed and step of the noise.
/// Throws           c10::ValueError for another estimator.
TORCHVQ_API at::Tensor estimate(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& rng,
                                const EstimateOptions& options = {});

}  // namespace torchvq::functional
