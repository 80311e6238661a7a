// k-means: clusters vectors into a codebook, without a network.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq {

/// Options of kmeans().
struct KmeansOptions {
  /// Lloyd iterations, >= 0. More iterations are slower, and each gains less. Default: 10.
  int64_t iterations = 10;
  /// "euclidean" or "cosine" (spherical k-means). Default: "euclidean".
  std::string metric = "euclidean";
  /// (N,) or (H, N), bool, true for real vectors. Default: all.
  std::optional<at::Tensor> mask = std::nullopt;
  /// The result depends only on the vectors, the options and this number. Default: 0.
  int64_t seed = 0;
};

struct KmeansOutput {
  at::Tensor codebook;  ///< (K, D) or (H, K, D)
  at::Tensor counts;    ///< (K,) or (H, K), int64: number of vectors of each code
};

/// Clusters vectors; ops/kmeans.h describes the algorithm.
///
/// @param x              (N, D) or (H, N, D), floating point.
/// @param codebook_size  K >= 1.
/// @return               see KmeansOutput; without the axis H if x is (N, D).
///
/// Throws       c10::ValueError for bad shapes and options, and for a head without a single usable
///              vector, c10::TypeError for bad dtypes.
/// Example      auto [codebook, counts] = torchvq::kmeans(x, 256, {.iterations = 20});
TORCHVQ_API KmeansOutput kmeans(const at::Tensor& x, int64_t codebook_size,
                                const KmeansOptions& options = {});

}  // namespace torchvq
