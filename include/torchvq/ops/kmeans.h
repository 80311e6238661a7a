// k-means as one operator: seeding, Lloyd iterations, exact means. Users call torchvq/kmeans.h.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Clusters tokens, head by head.
///
/// Seeding      k-means++: seeds are drawn with probability proportional to the squared distance to
///              the nearest seed so far, on a random sample of distinct tokens; many proposals per
///              round, thinned by rejection sampling
/// Formula      iterate: index[n] = nearest_code(x[n]);
///              code += stride * (mean of its tokens - code), cosine: made a unit vector;
///              stride is 1.7, and 1 in the last iteration, so that codes end as means;
///              codes without tokens move to distinct tokens, drawn with probability proportional to
///              the squared distance to their codes. The last third of the iterations uses all
///              tokens, each earlier one the next max(8192, 24 K) tokens of a random sample of
///              max(65536, 64 K).
/// Paper        Arthur, Vassilvitskii 2007, k-means++; Bachem et al. 2016, Fast and provably good
///              seedings for k-means
///
/// @param x              (H, N, D), floating point, any strides. D >= 1.
/// @param codebook_size  K >= 1.
/// @param rng            (2,), int64: (seed, step).
/// @param iterations     Lloyd iterations, >= 0; 0 returns the seeds. Default: 10.
/// @param metric         "euclidean" or "cosine" (spherical k-means: tokens and codes are unit
///                       vectors). Default: "euclidean".
/// @param mask           (H, N) or (N,), bool, true for real tokens. Default: all.
/// @return               codebook (H, K, D), float64 for float64 tokens, otherwise float32;
///                       counts (H, K), int64: the number of tokens nearest to each returned code.
///
/// Gradient     none.
/// Few tokens   a head with at most K distinct tokens gets each of them as a code, and the rest of
///              its codes repeat them with count 0. A head without usable tokens gets zeros and
///              counts of zero.
/// Non-finite   rows with NaN or infinity are left out, as are zero rows for cosine.
/// Determinism  a function of the multiset of tokens and rng: token order, threads and instruction
///              sets do not matter.
/// Throws       c10::ValueError for bad shapes and options, c10::TypeError for bad dtypes.
TORCHVQ_API std::pair<at::Tensor, at::Tensor> kmeans(
    const at::Tensor& x, int64_t codebook_size, const at::Tensor& rng, int64_t iterations = 10,
    const std::string& metric = "euclidean", const std::optional<at::Tensor>& mask = std::nullopt);

}  // namespace torchvq::ops
