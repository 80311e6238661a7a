#include <torchvq/distributed/synced_kmeans.h>

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "detail/precision.h"
#include "detail/row_keys.h"
#include "distributed/group.h"
#include "distributed/kmeans_step.h"
#include "distributed/padded.h"
#include "ops/capture.h"
#include "ops/kmeans.h"
#include "ops/kmeans_steps.h"

namespace torchvq::distributed {
namespace {

std::vector<detail::Points> points_of_heads(const at::Tensor& x,
                                            const std::optional<at::Tensor>& mask,
                                            const at::Tensor& rng, bool unit) {
  std::vector<detail::Points> heads;
  for (int64_t head = 0; head < x.size(0); ++head) {
    auto head_mask = mask;
    if (mask.has_value() && mask->dim() == 2) head_mask = mask->select(0, head);
    heads.push_back(detail::usable_points(x.select(0, head), head_mask, rng, unit));
  }
  return heads;
}

/// The ranks that own the `limit` smallest keys of all ranks. `keys` (W, H, limit) is sorted for
/// each rank. Equal keys are equal tokens, so it does not matter which of them are taken, only that
/// all ranks take the same: those of lower ranks.
at::Tensor shares(const at::Tensor& keys, int64_t limit) {
  const int64_t ranks = keys.size(0), heads = keys.size(1);
  const auto flat = keys.transpose(0, 1).reshape({heads, ranks * limit});
  const auto [sorted, positions] = at::sort(flat, /*stable=*/true, /*dim=*/1, /*descending=*/false);
  const auto taken = sorted.narrow(1, 0, limit).ne(detail::kNoKey).to(at::kLong);
  const auto owners = positions.narrow(1, 0, limit).floor_divide(limit);
  return keys.new_zeros({heads, ranks}).scatter_add_(1, owners, taken).t().contiguous();
}

/// The first tokens of each head by key, gathered from all ranks.
struct Sample {
  std::vector<detail::Points> heads;
  /// Whether the limit was reached, so that tokens may have been left out.
  bool full;
};

detail::Points merge(const at::Tensor& keys, const at::Tensor& rows, const at::Tensor& counts,
                     int64_t head) {
  std::vector<at::Tensor> own_keys, own_rows;
  for (int64_t rank = 0; rank < keys.size(0); ++rank) {
    const auto count = counts[rank][head].item<int64_t>();
    own_keys.push_back(keys[rank][head].narrow(0, 0, count));
    own_rows.push_back(rows[rank][head].narrow(0, 0, count));
  }
  const auto [sorted, order] =
      at::sort(at::cat(own_keys), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  return {at::cat(own_rows).index_select(0, order), sorted};
}

Sample sample_of_one(const std::vector<detail::Points>& own, int64_t limit) {
  Sample sample{{}, false};
  for (const auto& points : own) {
    const int64_t count = std::min(limit, points.keys.size(0));
    sample.full = sample.full || count == limit;
    sample.heads.push_back({points.rows.narrow(0, 0, count), points.keys.narrow(0, 0, count)});
  }
  return sample;
}

Sample gather_sample(const Group& group, const std::vector<detail::Points>& own, int64_t limit) {
  if (group.alone() || own.empty()) return sample_of_one(own, limit);
  std::vector<at::Tensor> keys, rows;
  for (const auto& points : own) keys.push_back(padded(points.keys, limit, detail::kNoKey));
  const auto all_keys = group.all_gather(at::stack(keys), "the order of the tokens for k-means");
  const auto counts = shares(all_keys, limit).cpu();
  const int64_t longest = counts.max().item<int64_t>();
  for (const auto& points : own) rows.push_back(padded(points.rows, longest, 0));
  const auto all_rows = group.all_gather(at::stack(rows), "the tokens for k-means");
  Sample sample{{}, counts.sum(0).eq(limit).any().item<bool>()};
  for (size_t head = 0; head < own.size(); ++head) {
    sample.heads.push_back(merge(all_keys, all_rows, counts, static_cast<int64_t>(head)));
  }
  return sample;
}

at::Tensor count_tokens(const std::vector<detail::Points>& own, const at::Tensor& codebook,
                        bool unit) {
  auto counts =
      codebook.new_zeros({codebook.size(0), codebook.size(1)}, codebook.options().dtype(at::kLong));
  for (size_t head = 0; head < own.size(); ++head) {
    if (own[head].rows.size(0) == 0) continue;
    const auto at_head = static_cast<int64_t>(head);
    counts.select(0, at_head)
        .copy_(detail::count_points(own[head], codebook.select(0, at_head), unit));
  }
  return counts;
}

using Result = std::tuple<at::Tensor, at::Tensor>;
using SyncedKmeansSignature = Result(const at::Tensor&, int64_t, const at::Tensor&, int64_t,
                                     std::string_view, const std::optional<at::Tensor>&,
                                     std::string_view, std::string_view);

Result synced_kmeans_any(const at::Tensor& x, int64_t codebook_size, const at::Tensor& rng,
                         int64_t iterations, std::string_view metric,
                         const std::optional<at::Tensor>& mask, std::string_view group_name,
                         std::string_view label) {
  const bool unit = detail::check_kmeans(x, codebook_size, rng, iterations, metric, mask);
  const SyncOptions sync{std::string(group_name), std::string(label)};
  const Group group(group_name, {sync.label, rng});
  const auto own = points_of_heads(x, mask, rng, unit);
  const auto sample = gather_sample(group, own, detail::sample_size(codebook_size));
  const auto dtype = detail::compute_dtype(x);
  auto codebook = x.new_zeros({x.size(0), codebook_size, x.size(2)}, x.options().dtype(dtype));
  for (int64_t head = 0; head < x.size(0); ++head) {
    const auto& points = sample.heads[static_cast<size_t>(head)];
    if (points.rows.size(0) == 0) continue;
    detail::LloydStep on_all_tokens;
    if (sample.full) {
      on_all_tokens = [&](const at::Tensor& codes, double stride, int64_t iteration) {
        return synced_lloyd_step(group, own[static_cast<size_t>(head)], codes, rng, iteration, unit,
                                 stride, sync);
      };
    }
    codebook.select(0, head).copy_(detail::cluster(points, codebook_size, rng, iterations, unit,
                                                   detail::kStride, on_all_tokens));
  }
  const auto counts = count_tokens(sample.full ? own : sample.heads, codebook, unit);
  if (sample.full) group.sum_(counts, "the counts of k-means");
  return {codebook, counts};
}

Result synced_kmeans_meta(const at::Tensor& x, int64_t codebook_size, const at::Tensor& rng,
                          int64_t iterations, std::string_view metric,
                          const std::optional<at::Tensor>& mask, std::string_view /*group_name*/,
                          std::string_view /*label*/) {
  detail::check_kmeans(x, codebook_size, rng, iterations, metric, mask);
  const auto dtype = detail::compute_dtype(x);
  const auto heads = x.sym_size(0);
  return {x.new_empty_symint({heads, codebook_size, x.sym_size(2)}, x.options().dtype(dtype)),
          rng.new_empty_symint({heads, codebook_size})};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> synced_kmeans(const at::Tensor& x, int64_t codebook_size,
                                                const at::Tensor& rng,
                                                const SyncedKmeansOptions& options) {
  static auto op = detail::op_handle<SyncedKmeansSignature>("torchvq::synced_kmeans");
  auto [codebook, counts] = op.call(x, codebook_size, rng, options.iterations, options.metric,
                                    options.mask, options.group_name, options.label);
  return {std::move(codebook), std::move(counts)};
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "synced_kmeans(Tensor x, int codebook_size, Tensor rng, *, int iterations=10, str "
      "metric=\"euclidean\", "
      "Tensor? mask=None, str group_name=\"\", str label=\"quantizer\") -> (Tensor codebook, "
      "Tensor counts)",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("synced_kmeans", torchvq::distributed::synced_kmeans_any);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("synced_kmeans", torchvq::distributed::synced_kmeans_meta);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("synced_kmeans",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
