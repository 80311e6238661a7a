#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
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

/// Early iterations move codes far and need no precision: they use a prefix with this many points
/// per code. The last third of the iterations, rounded up, uses all points.
constexpr int64_t kEarlyPointsPerCode = 24;
constexpr int64_t kMinEarlyPoints = 8192;

/// Length of a step relative to the distance to the mean. For given clusters any value below 2
/// lowers the error, and with a value above 1 the same number of iterations reaches a lower error
/// (docs/design/statistics.md). The last step goes to the mean itself.
constexpr double kStride = 1.7;

at::Tensor assign_indices(const at::Tensor& rows, const at::Tensor& codes, bool unit) {
  const auto options = ops::NearestCodeOptions().metric(unit ? "cosine" : "euclidean");
  return ops::nearest_code(rows.unsqueeze(0), codes.unsqueeze(0), options).indices[0];
}

/// Codes without points move to the distinct points farthest from their codes.
void move_empty_codes(const Points& points, int64_t size, const at::Tensor& counts, bool unit,
                      at::Tensor& codes) {
  const auto empty = counts.eq(0).nonzero().squeeze(1);
  if (empty.size(0) == 0) return;
  const auto distances = assign(points.rows.narrow(0, 0, size), codes, unit).second;
  // Equal points are adjacent and have equal distances, so the stable sort keeps them adjacent.
  const auto order =
      std::get<1>(at::sort(distances, /*stable=*/true, /*dim=*/0, /*descending=*/true));
  const auto keys = points.keys.narrow(0, 0, distances.size(0)).index_select(0, order);
  auto distinct = at::ones_like(keys, keys.options().dtype(at::kBool));
  const int64_t others = keys.size(0) - 1;
  distinct.narrow(0, 1, others).copy_(keys.narrow(0, 1, others).ne(keys.narrow(0, 0, others)));
  const auto farthest = order.index_select(0, distinct.nonzero().squeeze(1));
  const int64_t moved = std::min(empty.size(0), farthest.size(0));
  codes.index_copy_(0, empty.narrow(0, 0, moved),
                    points.rows.index_select(0, farthest.narrow(0, 0, moved)));
}

at::Tensor lloyd_step(const Points& points, int64_t size, const at::Tensor& codes, bool unit,
                      double stride) {
  const auto rows = points.rows.narrow(0, 0, size);
  const auto indices = assign_indices(rows, codes, unit);
  const auto [counts, sums, exponents] = ops::code_statistics(
      rows.unsqueeze(0), indices.unsqueeze(0), ops::code_exponents(codes.unsqueeze(0)));
  auto moved = step_to_means(counts, sums, exponents, codes, unit, stride);
  move_empty_codes(points, size, counts[0], unit, moved);
  return moved;
}

int64_t early_size(const Points& points, int64_t codebook_size) {
  const int64_t enough = std::max(kMinEarlyPoints, codebook_size * kEarlyPointsPerCode);
  return std::min(points.rows.size(0), enough);
}

}  // namespace

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

Clusters cluster(const Points& points, int64_t codebook_size, const at::Tensor& rng,
                 int64_t iterations, bool unit, const LloydStep& late_step) {
  const int64_t sample_size = std::max(kMinSeedingPoints, codebook_size * kSeedingPointsPerCode);
  const auto sample = distinct_points(points, sample_size);
  const int64_t distinct = sample.rows.size(0);
  at::Tensor codes;
  if (distinct <= codebook_size) {
    const auto repeated = at::arange(codebook_size, rng.options()).remainder(distinct);
    codes = sample.rows.index_select(0, repeated);
  } else {
    codes = spread_seeds(sample, codebook_size, rng, unit);
    for (int64_t i = 0; i < iterations; ++i) {
      const bool early = i < iterations - (iterations + 2) / 3;
      const double stride = i + 1 < iterations ? kStride : 1.0;
      const int64_t size = early ? early_size(points, codebook_size) : points.rows.size(0);
      codes = !early && late_step ? late_step(codes, stride)
                                  : lloyd_step(points, size, codes, unit, stride);
    }
  }
  const auto indices = assign_indices(points.rows, codes, unit);
  const auto counts =
      indices.new_zeros({codebook_size}).scatter_add_(0, indices, at::ones_like(indices));
  return {codes, counts};
}

}  // namespace torchvq::detail
