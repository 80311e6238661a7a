#include "fit/spread_seeds.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/random_numbers.h>

#include <algorithm>
#include <limits>

namespace torchvq::fit {
namespace {

constexpr int64_t kBatchFraction = 8;

// Draws `count` rows without repetition, row n with a probability that grows with weight[n]
// (Efraimidis, Spirakis 2006). Rows of weight 0 come last, also in random order.
at::Tensor draw(const at::Tensor& weights, int64_t count, const at::Tensor& rng) {
  const auto uniform = ops::random_numbers(rng, RandomPurpose::kKmeansSeeding,
                                           Distribution::kUniform, {weights.size(0)}, at::kDouble);
  const auto keys = uniform.log() / weights.to(at::kDouble).clamp_min(1e-300);
  return keys.argsort(/*stable=*/true, 0, /*descending=*/true).narrow(0, 0, count);
}

}  // namespace

at::Tensor spread_seeds(const at::Tensor& sample, int64_t size, const std::string& metric,
                        const at::Tensor& rng_) {
  const auto options = ops::NearestCodeOptions().metric(metric).return_distances(true);
  auto rng = rng_.clone();
  auto chosen = draw(at::ones({sample.size(0)}), 1, rng);
  auto fresh = chosen;
  auto distances = at::full({sample.size(0)}, std::numeric_limits<float>::infinity());
  while (chosen.size(0) < size) {
    const auto to_fresh =
        ops::nearest_code(sample, sample.index_select(0, fresh), options).distances;
    // Rounding may leave a tiny distance between equal vectors, which must not be chosen again.
    distances = at::minimum(distances, to_fresh.clamp_min(0)).index_fill_(0, chosen, 0);
    rng = rng + at::tensor({0, 1}, at::kLong);
    const auto batch = std::max<int64_t>(1, chosen.size(0) / kBatchFraction);
    fresh = draw(distances.sqrt(), std::min(batch, size - chosen.size(0)), rng);
    chosen = at::cat({chosen, fresh});
  }
  return sample.index_select(0, chosen);
}

}  // namespace torchvq::fit
