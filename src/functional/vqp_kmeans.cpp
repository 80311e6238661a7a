// k-means as vector-quantize-pytorch begins a codebook: clusters that lose their tokens keep their
// centre while it runs, and end without tokens.
#include <vector>

#include <ATen/ops/bincount.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/unit_vectors.h>

namespace torchvq::functional {
namespace {

using Clusters = std::pair<at::Tensor, at::Tensor>;

/// Of rows (T, D), T above 0.
Clusters clusters_of(const at::Tensor& rows, int64_t codes, int64_t iterations,
                     const std::string& metric) {
  const auto tokens = rows.size(0);
  const auto integers = rows.options().dtype(at::kLong);
  const auto picked = tokens >= codes ? at::randperm(tokens, integers).narrow(0, 0, codes)
                                      : at::randint(tokens, {codes}, integers);
  auto centres = rows.index_select(0, picked);
  auto counts = at::bincount(picked, {}, tokens).index_select(0, picked);
  for (int64_t step = 0; step < iterations; ++step) {
    const auto nearest = ops::nearest_code(rows.unsqueeze(0), centres.unsqueeze(0),
                                           ops::NearestCodeOptions().metric(metric));
    const auto indices = nearest.indices.squeeze(0);
    counts = at::bincount(indices, {}, codes);
    const auto sums = at::zeros_like(centres).index_add(0, indices, rows);
    const auto used = counts.gt(0).unsqueeze(-1);
    centres = at::where(used, sums.div(counts.clamp_min(1).unsqueeze(-1)), centres);
    if (metric == "cosine") centres = ops::unit_vectors(centres);
  }
  return {centres, counts};
}

}  // namespace

Clusters vqp_kmeans(const at::Tensor& x, int64_t codes, const std::optional<at::Tensor>& mask,
                    int64_t iterations, const std::string& metric) {
  std::vector<at::Tensor> centres, counts;
  for (int64_t head = 0; head < x.size(0); ++head) {
    auto counted = x[head].isfinite().all(-1);
    if (mask) counted = counted.logical_and((*mask)[head]);
    auto rows = x[head].index_select(0, counted.nonzero().squeeze(-1));
    if (metric == "cosine") rows = ops::unit_vectors(rows);
    auto found = rows.size(0) > 0 ? clusters_of(rows, codes, iterations, metric)
                                  : Clusters{x.new_zeros({codes, x.size(-1)}),
                                             x.new_zeros({codes}, x.options().dtype(at::kLong))};
    centres.push_back(std::move(found.first));
    counts.push_back(std::move(found.second));
  }
  return {at::stack(centres), at::stack(counts)};
}

}  // namespace torchvq::functional
