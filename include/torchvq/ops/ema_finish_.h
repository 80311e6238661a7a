// Codes from moving averages: the second half of ema_update_().
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Options of ema_finish_().
struct EmaFinishOptions {
  /// Decay of the averages, in [0, 1]: says which codes are unused, see ema_update_(). 1
  /// recomputes every code from its averages, faint or not. Default: 0.8.
  double decay = 0.8;
  /// Laplace smoothing of the cluster sizes, finite, >= 0. Default: 1e-5.
  double eps = 1e-5;
  /// "euclidean" or "cosine". Default: "euclidean".
  std::string metric = "euclidean";
};

/// Recomputes the codes from the moving averages.
///
/// Formula      smoothed = (cluster_size + eps) / (total + K * eps) * total,
///              total = sum of cluster_size over the head;
///              embed = embed_avg / smoothed; cosine: embed /= ||embed||, a zero code stays zero.
///              A faint code keeps its place, and an unused one moves to one of the codes with the
///              most tokens, see ema_update_().
/// Paper        van den Oord et al. 2017, arXiv:1711.00937, appendix A.1
///
/// @param embed         (H, K, D), float32 or float64; changed in place.
/// @param cluster_size  (H, K), dtype of embed.
/// @param embed_avg     (H, K, D), dtype of embed.
///
/// Gradient, precision, determinism and errors as for ema_update_().
TORCHVQ_API void ema_finish_(at::Tensor embed, const at::Tensor& cluster_size,
                             const at::Tensor& embed_avg, const EmaFinishOptions& options = {});

}  // namespace torchvq::ops
