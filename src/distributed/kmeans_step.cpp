#include "distributed/kmeans_step.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/ops/code_exponents.h>

#include "detail/row_keys.h"
#include "distributed/padded.h"

namespace torchvq::distributed {
namespace {

/// One all-gather of `limit` points per rank, as bytes: keys, times, rows.
detail::DrawnPoints gather(const Group& group, const detail::DrawnPoints& own, int64_t limit) {
  if (group.alone()) return own;
  const at::Tensor parts[] = {padded(own.keys, limit, detail::kNoKey),
                              padded(own.times, limit, detail::kNever), padded(own.rows, limit, 0)};
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
  const auto keys = next(parts[0]), times = next(parts[1]), rows = next(parts[2]);
  return {rows, keys, times};
}

}  // namespace

at::Tensor synced_lloyd_step(const Group& group, const detail::Points& own, const at::Tensor& codes,
                             const at::Tensor& rng, int64_t iteration, bool unit, double stride,
                             const SyncOptions& sync) {
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
  const int64_t limit = empty.size(0);
  if (limit == 0) return moved;
  const auto mine = detail::draw_far_points(own, moved, rng, iteration, unit, limit);
  const auto all = detail::first_drawn(gather(group, mine, limit), limit);
  moved.index_copy_(0, empty.narrow(0, 0, all.rows.size(0)), all.rows);
  return moved;
}

}  // namespace torchvq::distributed
