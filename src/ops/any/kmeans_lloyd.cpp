#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/nearest_code.h>

#include "detail/codebook_average.h"
#include "detail/fixed_point.h"
#include "ops/kmeans_steps.h"

namespace torchvq::detail {
namespace {

/// Seeds are chosen from this many distinct points per code, and at least from the minimum below:
/// more points do not lower the error.
constexpr int64_t kSeedingPointsPerCode = 16;
constexpr int64_t kMinSeedingPoints = 4096;

/// Early iterations move codes far and need no precision: each uses a window with this many points
/// per code. The last third of the iterations, rounded up, uses all points.
constexpr int64_t kEarlyPointsPerCode = 24;
constexpr int64_t kMinEarlyPoints = 8192;

/// Windows lie in a sample with this many points per code, which ranks can gather.
constexpr int64_t kSamplePerCode = 64;
constexpr int64_t kMinSample = 65536;

at::Tensor assign_indices(const at::Tensor& rows, const at::Tensor& codes, bool unit) {
  const auto options = ops::NearestCodeOptions().metric(unit ? "cosine" : "euclidean");
  return ops::nearest_code(rows.unsqueeze(0), codes.unsqueeze(0), options).indices[0];
}

/// Codes without points move to distinct points, drawn as the seeds of k-means++ are.
void move_empty_codes(const Points& points, const at::Tensor& counts, const at::Tensor& rng,
                      int64_t iteration, bool unit, at::Tensor& codes) {
  const auto empty = counts.eq(0).nonzero().squeeze(1);
  if (empty.size(0) == 0) return;
  const auto drawn = draw_far_points(points, codes, rng, iteration, unit, empty.size(0));
  codes.index_copy_(0, empty.narrow(0, 0, drawn.rows.size(0)), drawn.rows);
}

at::Tensor lloyd_step(const Points& points, const at::Tensor& codes, const at::Tensor& rng,
                      int64_t iteration, bool unit, double stride) {
  const auto indices = assign_indices(points.rows, codes, unit);
  const auto [counts, sums, exponents] = ops::code_statistics(
      points.rows.unsqueeze(0), indices.unsqueeze(0), ops::code_exponents(codes.unsqueeze(0)));
  auto moved = step_to_means(counts, sums, exponents, codes, unit, stride);
  move_empty_codes(points, counts[0], rng, iteration, unit, moved);
  return moved;
}

/// The points of an early iteration: the next window of the sample, around its end. Codes that see one
/// window again and again fit it, and most of all the seeds, which were drawn from the first.
Points early_points(const Points& points, int64_t codebook_size, int64_t iteration) {
  const int64_t sample = std::min(points.rows.size(0), sample_size(codebook_size));
  const int64_t enough = std::max(kMinEarlyPoints, codebook_size * kEarlyPointsPerCode);
  const int64_t size = std::min(sample, enough);
  const int64_t begin = iteration * size % sample, first = std::min(size, sample - begin);
  const auto window = [&](const at::Tensor& values) {
    const auto part = values.narrow(0, begin, first);
    return first == size ? part : at::cat({part, values.narrow(0, 0, size - first)});
  };
  return {window(points.rows), window(points.keys)};
}

}  // namespace

int64_t sample_size(int64_t codebook_size) {
  return std::max(kMinSample, codebook_size * kSamplePerCode);
}

DrawnPoints first_drawn(const DrawnPoints& points, int64_t limit) {
  // The time of a point is a function of its bits, and so is its key: equal points are adjacent.
  const auto by_key =
      std::get<1>(at::sort(points.keys, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  const auto by_time = std::get<1>(at::sort(points.times.index_select(0, by_key), /*stable=*/true,
                                            /*dim=*/0, /*descending=*/false));
  const auto sorted = points.select(by_key.index_select(0, by_time));
  auto usable = sorted.times.isfinite();
  if (const int64_t others = sorted.keys.size(0) - 1; others > 0) {
    const auto fresh = sorted.keys.narrow(0, 1, others).ne(sorted.keys.narrow(0, 0, others));
    usable.narrow(0, 1, others).logical_and_(fresh);
  }
  const auto positions = usable.nonzero().squeeze(1);
  return sorted.select(positions.narrow(0, 0, std::min(limit, positions.size(0))));
}

DrawnPoints draw_far_points(const Points& points, const at::Tensor& codes, const at::Tensor& rng,
                            int64_t iteration, bool unit, int64_t limit) {
  const auto distances = assign(points.rows, codes, unit).second.to(at::kDouble);
  const auto times =
      race_times(points.keys, distances, rng, RandomPurpose::kKmeansEmptyCodes, iteration);
  return first_drawn({points.rows, points.keys, times}, limit);
}

at::Tensor step_to_means(const at::Tensor& counts, const at::Tensor& sums,
                         const at::Tensor& exponents, const at::Tensor& codes, bool unit,
                         double stride) {
  const auto dtype = codes.scalar_type();
  const auto total = decode_to_double(sums, exponents, at::kDouble)[0];
  const auto number = counts[0].unsqueeze(-1).to(at::kDouble);
  const auto mean = total / number.clamp_min(1);
  const auto target = unit ? unit_rows(mean) : mean;
  const auto from = codes.to(at::kDouble);
  auto moved = (stride == 1 ? target : (target - from) * stride + from).to(dtype);
  // Near the limits of float, the extrapolated point may overflow; the mean does not.
  moved = at::where(moved.isfinite().all(-1, /*keepdim=*/true), moved, target.to(dtype));
  if (!unit) return at::where(number.gt(0), moved, codes);
  // If the points of a code cancel out, their mean has no direction and the code does not move.
  return at::where(mean.ne(0).any(-1, /*keepdim=*/true), unit_rows(moved).to(dtype), codes);
}

std::pair<at::Tensor, at::Tensor> assign(const at::Tensor& rows, const at::Tensor& codes,
                                         bool unit) {
  const auto options =
      ops::NearestCodeOptions().metric(unit ? "cosine" : "euclidean").return_distances(true);
  const auto nearest = ops::nearest_code(rows.unsqueeze(0), codes.unsqueeze(0), options);
  return {nearest.indices[0], nearest.distances[0]};
}

at::Tensor cluster(const Points& points, int64_t codebook_size, const at::Tensor& rng,
                   int64_t iterations, bool unit, double stride, const LloydStep& late_step) {
  const int64_t seeding = std::max(kMinSeedingPoints, codebook_size * kSeedingPointsPerCode);
  const auto sample = distinct_points(points, seeding);
  const int64_t distinct = sample.rows.size(0);
  at::Tensor codes;
  if (distinct <= codebook_size) {
    const auto repeated = at::arange(codebook_size, rng.options()).remainder(distinct);
    codes = sample.rows.index_select(0, repeated);
  } else {
    codes = spread_seeds(sample, codebook_size, rng, unit);
    for (int64_t i = 0; i < iterations; ++i) {
      const bool early = i < iterations - (iterations + 2) / 3;
      const double length = i + 1 < iterations ? stride : 1.0;
      const auto used = early ? early_points(points, codebook_size, i) : points;
      codes = !early && late_step ? late_step(codes, length, i)
                                  : lloyd_step(used, codes, rng, i, unit, length);
    }
  }
  return codes;
}

at::Tensor count_points(const Points& points, const at::Tensor& codes, bool unit) {
  const auto indices = assign_indices(points.rows, codes, unit);
  return indices.new_zeros({codes.size(0)}).scatter_add_(0, indices, at::ones_like(indices));
}

}  // namespace torchvq::detail
