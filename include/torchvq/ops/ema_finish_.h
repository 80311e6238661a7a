// Codes from moving averages: the second half of ema_update_().
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Recomputes the codes from the moving averages.
///
/// Formula      smoothed = (cluster_size + eps) / (total + K * eps) * total, total = sum of
/// cluster_size over the head
///              embed = embed_avg / smoothed;  cosine: embed /= ||embed||, a zero code stays zero
///              A code with cluster_size < 1e-2 keeps its embed: eps would pull it to the origin.
/// Paper        van den Oord et al. 2017, arXiv:1711.00937, appendix A.1
///
/// @param embed         (H, K, D), float32 or float64; changed in place.
/// @param cluster_size  (H, K), dtype of embed.
/// @param embed_avg     (H, K, D), dtype of embed.
/// @param eps           Laplace smoothing, finite, >= 0. Default: 1e-5.
/// @param metric        "euclidean" or "cosine". Default: "euclidean".
///
/// Gradient, precision, determinism and errors as for ema_update_().
TORCHVQ_API void ema_finish_(at::Tensor embed, const at::Tensor& cluster_size,
                             const at::Tensor& embed_avg, double eps = 1e-5,
                             const std::string& metric = "euclidean");

}  // namespace torchvq::ops
