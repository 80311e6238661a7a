// k-means as in vector-quantize-pytorch: clusters that lose their tokens keep their centre during
// the iterations, and end without tokens.
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/random_numbers.h>
#include <torchvq/ops/unit_vectors.h>

#include "detail/precision.h"
#include "detail/row_keys.h"

namespace torchvq::functional {
namespace {

using Clusters = std::pair<at::Tensor, at::Tensor>;

/// Random rows as seeds: rows (T) that count, without repetition; if there are fewer than `codes`
/// of them, with repetition.
at::Tensor seeds(const at::Tensor& counted, int64_t codes, const at::Tensor& rng, int64_t head) {
  const auto draw = [&](c10::SymInt size, int64_t stream) {
    return ops::random_numbers(rng, RandomPurpose::kKmeansSeeding, Distribution::kUniform,
                               {std::move(size)}, at::kDouble, 2 * head + stream);
  };
  const auto order = at::where(counted, draw(counted.sym_size(0), 0), 2.0).argsort();
  const auto count = counted.sum();
  const auto repeated = draw(codes, 1).mul(count).to(at::kLong);
  const auto place = at::where(count.ge(codes), at::arange(codes, count.options()), repeated);
  const auto last = (count - 1).clamp_min(0);
  return order.index_select(0, at::minimum(place, last));
}

/// Clusters of rows (T, D), T above 0; rows that do not count must be zeros.
Clusters clusters_of(const at::Tensor& rows, const at::Tensor& counted, const at::Tensor& chosen,
                     int64_t iterations, const std::string& metric) {
  const auto weights = counted.to(at::kLong);
  const auto codes = chosen.size(0);
  const auto none = at::zeros({codes}, weights.options());
  const auto tokens = [&](const at::Tensor& clusters) {
    return none.index_add(0, clusters, weights);
  };
  auto centres = rows.index_select(0, chosen);
  auto counts = at::zeros_like(weights).index_add(0, chosen, at::ones_like(chosen));
  counts = counts.index_select(0, chosen).mul(counted.any());
  for (int64_t step = 0; step < iterations; ++step) {
    const auto nearest = ops::nearest_code(rows.unsqueeze(0), centres.unsqueeze(0),
                                           ops::NearestCodeOptions().metric(metric));
    const auto indices = nearest.indices.squeeze(0);
    counts = tokens(indices);
    const auto sums = at::zeros_like(centres).index_add(0, indices, rows);
    const auto used = counts.gt(0).unsqueeze(-1);
    centres = at::where(used, sums.div(counts.clamp_min(1).unsqueeze(-1)), centres);
    if (metric == "cosine") centres = ops::unit_vectors(centres);
  }
  return {centres, counts};
}

}  // namespace

Clusters vqp_kmeans(const at::Tensor& x_, int64_t codes, const at::Tensor& rng,
                    const std::optional<at::Tensor>& mask, int64_t iterations,
                    const std::string& metric) {
  // Sums of half precision overflow, and centres are averages, which are never half precision.
  const auto x = x_.to(detail::compute_dtype(x_));
  if (x.sym_size(1) == 0) {
    return {x.new_zeros_symint({x.sym_size(0), codes, x.sym_size(2)}),
            at::zeros({x.size(0), codes}, x.options().dtype(at::kLong))};
  }
  const auto usable = detail::usable_rows(x, mask);
  std::vector<at::Tensor> centres, counts;
  for (int64_t head = 0; head < x.size(0); ++head) {
    const auto counted = usable[head];
    auto rows = at::where(counted.unsqueeze(-1), x[head], 0);
    if (metric == "cosine") rows = ops::unit_vectors(rows);
    auto found = clusters_of(rows, counted, seeds(counted, codes, rng, head), iterations, metric);
    centres.push_back(std::move(found.first));
    counts.push_back(std::move(found.second));
  }
  return {at::stack(centres), at::stack(counts)};
}

}  // namespace torchvq::functional
