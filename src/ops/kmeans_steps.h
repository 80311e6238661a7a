// The steps of k-means on the points of one head.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Usable points in the random order of their keys, equal points next to each other: a prefix is a
/// random sample, and nothing that follows depends on the order in which the points came.
struct Points {
  at::Tensor rows;  // (M, D), float32 or float64
  at::Tensor keys;  // (M,), int64, rising
};

struct Clusters {
  at::Tensor codes;   // (K, D)
  at::Tensor counts;  // (K,), int64
};

/// x is (N, D), mask (N,).
Points usable_points(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                     const at::Tensor& rng, bool unit);

/// Distinct points of a prefix, with how often each occurs in it.
struct Sample {
  at::Tensor rows;     // (S, D)
  at::Tensor keys;     // (S,)
  at::Tensor weights;  // (S,), float64
};

/// The first `size` distinct points (all, if there are fewer), weighted by their multiplicity.
Sample distinct_points(const Points& points, int64_t size);

/// K seeds by k-means++ spread on `sample`, which holds more than K points.
at::Tensor spread_seeds(const Sample& sample, int64_t codebook_size, const at::Tensor& rng,
                        bool unit);

/// New codes from codes and a stride: 1 goes to the means of the clusters, more goes beyond.
using LloydStep = std::function<at::Tensor(const at::Tensor&, double)>;

/// Seeding, Lloyd iterations, and the counts of the codes at the end. `points` is not empty.
/// `late_step` takes the place of the iterations over all points, for callers whose `points` are a
/// sample of what they have.
Clusters cluster(const Points& points, int64_t codebook_size, const at::Tensor& rng,
                 int64_t iterations, bool unit, const LloydStep& late_step = {});

/// Codes (K, D), moved from `codes` towards the means of their points: counts (1, K), sums (W, 1,
/// K, D), exponents (1, K). Codes without points stay.
at::Tensor step_to_means(const at::Tensor& counts, const at::Tensor& sums,
                         const at::Tensor& exponents, const at::Tensor& codes, bool unit,
                         double stride);

/// Index of the nearest code of each row, and the distance.
std::pair<at::Tensor, at::Tensor> assign(const at::Tensor& rows, const at::Tensor& codes,
                                         bool unit);

}  // namespace torchvq::detail
