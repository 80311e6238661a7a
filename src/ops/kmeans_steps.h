// The steps of k-means for the points of one head.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Usable points in the random order of their keys, with equal points adjacent: a prefix is a
/// random sample, and no later step depends on the order of the input.
struct Points {
  at::Tensor rows;  // (M, D), float32 or float64
  at::Tensor keys;  // (M,), int64, ascending
};

struct Clusters {
  at::Tensor codes;   // (K, D)
  at::Tensor counts;  // (K,), int64
};

/// x is (N, D), mask (N,).
Points usable_points(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                     const at::Tensor& rng, bool unit);

/// Distinct points of a prefix and their number of occurrences.
struct Sample {
  at::Tensor rows;     // (S, D)
  at::Tensor keys;     // (S,)
  at::Tensor weights;  // (S,), float64
};

/// The first `size` distinct points (all, if there are fewer), weighted by their multiplicity.
Sample distinct_points(const Points& points, int64_t size);

/// Chooses K seeds by k-means++ from `sample`, which holds more than K points.
at::Tensor spread_seeds(const Sample& sample, int64_t codebook_size, const at::Tensor& rng,
                        bool unit);

/// Computes new codes from codes and a stride: 1 moves to the means of the
/// clusters, larger values beyond.
using LloydStep = std::function<at::Tensor(const at::Tensor&, double)>;

/// Seeding, Lloyd iterations, and the final counts of the codes. `points` is not empty.
/// `late_step` replaces the iterations over all points, for callers whose `points` are
/// only a sample of their data.
Clusters cluster(const Points& points, int64_t codebook_size, const at::Tensor& rng,
                 int64_t iterations, bool unit, const LloydStep& late_step = {});

/// Moves `codes` (K, D) towards the means of their points, from counts (1, K), sums (W, 1, K, D)
/// and exponents (1, K). Codes without points do not move.
at::Tensor step_to_means(const at::Tensor& counts, const at::Tensor& sums,
                         const at::Tensor& exponents, const at::Tensor& codes, bool unit,
                         double stride);

/// Index of the nearest code of each row, and its distance.
std::pair<at::Tensor, at::Tensor> assign(const at::Tensor& rows, const at::Tensor& codes,
                                         bool unit);

}  // namespace torchvq::detail
