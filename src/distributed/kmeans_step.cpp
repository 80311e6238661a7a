#include "distributed/kmeans_step.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sort.h>

#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/ops/code_exponents.h>

#include "detail/row_keys.h"
#include "distributed/padded.h"

namespace torchvq::distributed {
namespace {

/// Points with their distances to their codes.
struct FarPoints {
  at::Tensor rows;       // (M, D)
  at::Tensor keys;       // (M,)
  at::Tensor distances;  // (M,)
};

FarPoints select(const FarPoints& points, const at::Tensor& positions) {
  return {points.rows.index_select(0, positions), points.keys.index_select(0, positions),
          points.distances.index_select(0, positions)};
}

/// The farthest `limit` distinct points, or all, in descending order of distance; ties by key.
FarPoints farthest(const FarPoints& points, int64_t limit) {
  const auto by_key =
      std::get<1>(at::sort(points.keys, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  const auto in_order = points.distances.index_select(0, by_key);
  const auto by_distance =
      std::get<1>(at::sort(in_order, /*stable=*/true, /*dim=*/0, /*descending=*/true));
  const auto sorted = select(points, by_key.index_select(0, by_distance));
  auto distinct = sorted.keys.ne(detail::kNoKey);
  if (const int64_t others = sorted.keys.size(0) - 1; others > 0) {
    // Equal points have equal distances and keys, and are therefore adjacent.
    const auto fresh = sorted.keys.narrow(0, 1, others).ne(sorted.keys.narrow(0, 0, others));
    distinct.narrow(0, 1, others).logical_and_(fresh);
  }
  const auto positions = distinct.nonzero().squeeze(1);
  return select(sorted, positions.narrow(0, 0, std::min(limit, positions.size(0))));
}

/// One all-gather of `limit` points per rank, as bytes: keys, distances, rows.
FarPoints gather(const Group& group, const FarPoints& own, int64_t limit) {
  if (group.alone()) return own;
  const at::Tensor parts[] = {padded(own.keys, limit, detail::kNoKey),
                              padded(own.distances, limit, -1), padded(own.rows, limit, 0)};
  std::vector<at::Tensor> bytes;
  for (const auto& part : parts) bytes.push_back(part.reshape({-1}).view(at::kByte));
  const auto all = group.all_gather(at::cat(bytes), "points for the empty codes of k-means");
  int64_t begin = 0;
  const auto next = [&](const at::Tensor& part) {
    const auto size = static_cast<int64_t>(part.nbytes());
    auto shape = part.sizes().vec();
    shape[0] *= group.size();
    const auto block = all.narrow(1, begin, size).clone(at::MemoryFormat::Contiguous);
    begin += size;
    return block.view(part.scalar_type()).view(shape);
  };
  const auto keys = next(parts[0]), distances = next(parts[1]), rows = next(parts[2]);
  return {rows, keys, distances};
}

}  // namespace

at::Tensor synced_lloyd_step(const Group& group, const detail::Points& own, const at::Tensor& codes,
                             bool unit, double stride, const SyncOptions& sync) {
  const auto indices = detail::assign(own.rows, codes, unit).first;
  SyncedStatisticsOptions options;
  options.group_name = sync.group_name;
  options.label = sync.label;
  options.signature = "k-means";
  const auto statistics =
      synced_code_statistics({own.rows.unsqueeze(0)}, {indices.unsqueeze(0)},
                             {ops::code_exponents(codes.unsqueeze(0))}, options);
  const auto& counts = statistics.counts[0];
  auto moved = detail::step_to_means(counts, statistics.sums[0], statistics.exponents[0], codes,
                                     unit, stride);
  const auto empty = counts[0].eq(0).nonzero().squeeze(1);
  if (empty.size(0) == 0) return moved;
  const auto distances = detail::assign(own.rows, moved, unit).second;
  const auto mine = farthest({own.rows, own.keys, distances}, empty.size(0));
  const auto all = farthest(gather(group, mine, empty.size(0)), empty.size(0));
  moved.index_copy_(0, empty.narrow(0, 0, all.rows.size(0)), all.rows);
  return moved;
}

}  // namespace torchvq::distributed
