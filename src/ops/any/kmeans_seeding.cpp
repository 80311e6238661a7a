#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/where.h>

#include "detail/random_tensor.h"
#include "detail/row_keys.h"
#include "ops/kmeans_steps.h"

namespace torchvq::detail {
namespace {

/// Proposals per round; the cost of a round grows with their square.
constexpr int64_t kMinPool = 64;
constexpr int64_t kMaxPool = 1024;

/// The share of all weights that proposals rejected in a round may have.
constexpr double kMostRejected = 1.0 / 64;

at::Tensor uniform_of_keys(const at::Tensor& keys, const at::Tensor& rng, RandomPurpose purpose,
                           int64_t stream) {
  return uniform_from_bits(mix_bits(keys + random_key(rng, static_cast<int64_t>(purpose), stream)),
                           53);
}

/// Squared distances to the nearest of `codes`; unit vectors have 2 - 2 cos.
at::Tensor squared_distances(const at::Tensor& rows, const at::Tensor& codes, bool unit) {
  const auto distances = assign(rows, codes, unit).second.to(at::kDouble);
  return unit ? distances * 2.0 : distances;
}

/// Number of proposals per round: more if there are many seeds, since a new seed
/// then changes few distances.
int64_t pool_size(int64_t seeds, int64_t free) {
  const int64_t wanted = std::clamp<int64_t>(seeds, kMinPool, kMaxPool);
  return seeds == 0 ? 1 : std::min(free, wanted);
}

double squared_distance(const double* a, const double* b, int64_t dim) {
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  return sum;
}

at::Tensor on_host(const at::Tensor& values) { return values.to(at::kDouble).cpu().contiguous(); }

/// In the order of the keys, so that every device gives the same bits.
double total_in_order(const at::Tensor& weights) {
  const auto values = on_host(weights);
  const auto* value = values.const_data_ptr<double>();
  return std::accumulate(value, value + values.numel(), 0.0);
}

/// The proposals of a round, in the order in which they were drawn.
struct Proposals {
  at::Tensor rows, distances, chances, weights;  ///< distances and weights before the round
};

/// Rejection sampling: proposals were drawn with the distances before the round; accepting
/// each with probability (current distance) / (distance before) gives the distribution of
/// seeds drawn one by one. A rejected proposal is not drawn again in this round, and would
/// leave its place to others, such as neighbours of old seeds; so the round ends when rejected
/// ones have more than `most_rejected` of the weights. Returns the positions of accepted
/// proposals, at most `limit`; the first is always accepted.
std::vector<int64_t> accept(const Proposals& proposals, double most_rejected, int64_t limit) {
  const auto rows = on_host(proposals.rows), distances = on_host(proposals.distances),
             chances = on_host(proposals.chances), weights = on_host(proposals.weights);
  const auto* row = rows.const_data_ptr<double>();
  const auto* before = distances.const_data_ptr<double>();
  const auto* chance = chances.const_data_ptr<double>();
  const auto* weight = weights.const_data_ptr<double>();
  const int64_t dim = rows.size(1);
  double rejected = 0;
  std::vector<int64_t> accepted;
  for (int64_t i = 0; i < rows.size(0) && rejected <= most_rejected; ++i) {
    if (static_cast<int64_t>(accepted.size()) == limit) break;
    double now = before[i];
    for (const auto other : accepted)
      now = std::min(now, squared_distance(row + i * dim, row + other * dim, dim));
    if (accepted.empty() || !(chance[i] * before[i] > now)) {
      accepted.push_back(i);
    } else {
      rejected += weight[i];
    }
  }
  return accepted;
}

}  // namespace

at::Tensor race_times(const at::Tensor& keys, const at::Tensor& weights, const at::Tensor& rng,
                      RandomPurpose purpose, int64_t stream) {
  const auto times = log_of_uniform(uniform_of_keys(keys, rng, purpose, stream)).neg() / weights;
  return at::where(weights.gt(0), times, kNever);
}

Points usable_points(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                     const at::Tensor& rng, bool unit) {
  const auto rows = rows_as_codes(x.unsqueeze(0), unit);
  auto usable = usable_rows(rows, mask);
  if (unit) usable = usable.logical_and(rows.ne(0).any(-1));
  const auto keys = row_keys(rows, rng, RandomPurpose::kKmeansSeeding)[0];
  const auto present = usable[0].nonzero().squeeze(1);
  auto [sorted, order] =
      at::sort(keys.index_select(0, present), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  // Adding 0 turns -0 into +0: both have the same key, and the result must not
  // depend on which was kept.
  return {rows[0].index_select(0, present.index_select(0, order)).add_(0), sorted};
}

Sample distinct_points(const Points& points, int64_t size) {
  const auto [keys, inverse, multiplicity] =
      at::unique_consecutive(points.keys, /*return_inverse=*/false, /*return_counts=*/true);
  const int64_t count = std::min(size, keys.size(0));
  const auto first = (multiplicity.cumsum(0) - multiplicity).narrow(0, 0, count);
  return {points.rows.index_select(0, first), keys.narrow(0, 0, count),
          multiplicity.narrow(0, 0, count).to(at::kDouble)};
}

at::Tensor spread_seeds(const Sample& sample, int64_t codebook_size, const at::Tensor& rng,
                        bool unit) {
  constexpr auto purpose = RandomPurpose::kKmeansSeeding;
  auto seeds = sample.rows.new_empty({codebook_size, sample.rows.size(1)});
  auto weights = sample.weights;
  auto distance = at::full_like(weights, kNever);
  auto free = at::ones_like(sample.keys, sample.keys.options().dtype(at::kBool));
  for (int64_t count = 0, round = 0; count < codebook_size; ++round) {
    const int64_t size = pool_size(count, sample.rows.size(0) - count);
    const auto pool =
        std::get<1>(at::topk(race_times(sample.keys, weights, rng, purpose, round), size, 0,
                             /*largest=*/false));
    const auto rows = sample.rows.index_select(0, pool), keys = sample.keys.index_select(0, pool);
    const auto chances = uniform_of_keys(keys, rng, purpose, -1 - round);
    const auto accepted =
        accept({rows, distance.index_select(0, pool), chances, weights.index_select(0, pool)},
               kMostRejected * total_in_order(weights), codebook_size - count);
    const auto chosen = pool.index_select(0, at::tensor(accepted, at::kLong).to(pool.device()));
    const auto fresh = sample.rows.index_select(0, chosen);
    seeds.narrow(0, count, fresh.size(0)).copy_(fresh);
    count += fresh.size(0);
    if (count == codebook_size) break;
    free.index_fill_(0, chosen, false);
    distance = at::minimum(distance, squared_distances(sample.rows, fresh, unit));
    // Points that are not seeds keep a weight above 0, so that there are always enough candidates.
    weights = at::where(free, (distance * sample.weights).clamp_min(1e-300), 0.0);
  }
  return seeds;
}

}  // namespace torchvq::detail
