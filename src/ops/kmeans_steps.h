// The steps of k-means for the points of one head.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/random_purpose.h>

namespace torchvq::detail {

/// Usable points in the random order of their keys, with equal points adjacent: a prefix is a
/// random sample, and no later step depends on the order of the input.
struct Points {
  at::Tensor rows;  // (M, D), float32 or float64
  at::Tensor keys;  // (M,), int64, ascending
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

/// The number of points in the order of their keys that seeding and early iterations may use.
int64_t sample_size(int64_t codebook_size);

/// The first `size` distinct points (all, if there are fewer), weighted by their multiplicity.
Sample distinct_points(const Points& points, int64_t size);

/// The arrival time of what is never drawn.
constexpr double kNever = std::numeric_limits<double>::infinity();

/// Arrival times of an exponential race, one per key, float64: the m smallest are a weighted sample without replacement
/// (Efraimidis, Spirakis 2006). Infinite for a weight of 0. A point's randomness comes from its key, so it depends
/// neither on the point's position nor on its rank.
at::Tensor race_times(const at::Tensor& keys, const at::Tensor& weights, const at::Tensor& rng,
                      RandomPurpose purpose, int64_t stream);

/// Points with their times in a race.
struct DrawnPoints {
  at::Tensor rows;   // (M, D)
  at::Tensor keys;   // (M,)
  at::Tensor times;  // (M,), float64

  DrawnPoints select(const at::Tensor& positions) const {
    return {rows.index_select(0, positions), keys.index_select(0, positions),
            times.index_select(0, positions)};
  }
};

/// The first `limit` distinct points by their times, ties by key; fewer if others have infinite times.
DrawnPoints first_drawn(const DrawnPoints& points, int64_t limit);

/// At most `limit` distinct points, drawn with probability proportional to the squared distance to the nearest of
/// `codes`, without replacement.
DrawnPoints draw_far_points(const Points& points, const at::Tensor& codes, const at::Tensor& rng,
                            int64_t iteration, bool unit, int64_t limit);

/// Chooses K seeds by k-means++ from `sample`, which holds more than K points.
at::Tensor spread_seeds(const Sample& sample, int64_t codebook_size, const at::Tensor& rng,
                        bool unit);

/// Computes new codes from codes and a stride: 1 moves to the means of the
/// clusters, larger values beyond. The last argument is the number of the iteration.
using LloydStep = std::function<at::Tensor(const at::Tensor&, double, int64_t)>;

/// Length of a step relative to the distance to the mean. For given clusters any value below 2
/// lowers the error, and with a value above 1 the same number of iterations reaches a lower error
/// (docs/design/statistics.md). The last step goes to the mean itself.
constexpr double kStride = 1.7;

/// Seeding and Lloyd iterations: codes (K, D). `points` is not empty. `late_step` replaces the
/// iterations over all points, for callers whose `points` are only a sample of their data.
at::Tensor cluster(const Points& points, int64_t codebook_size, const at::Tensor& rng,
                   int64_t iterations, bool unit, double stride = kStride,
                   const LloydStep& late_step = {});

/// The number of points of each code, (K,), int64.
at::Tensor count_points(const Points& points, const at::Tensor& codes, bool unit);

/// Moves `codes` (K, D) towards the means of their points, from counts (1, K), sums (W, 1, K, D)
/// and exponents (1, K). Codes without points do not move.
at::Tensor step_to_means(const at::Tensor& counts, const at::Tensor& sums,
                         const at::Tensor& exponents, const at::Tensor& codes, bool unit,
                         double stride);

/// Index of the nearest code of each row, and its distance.
std::pair<at::Tensor, at::Tensor> assign(const at::Tensor& rows, const at::Tensor& codes,
                                         bool unit);

}  // namespace torchvq::detail
