#include "fit/evaluate_blocks.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "distributed/group.h"
#include "functional/read_block.h"

namespace torchvq::fit {
namespace {

// Replaces counts and error by their sums over all ranks: one all-reduce, exact.
void add_over_group_(const distributed::Group& group, const at::Tensor& counts,
                     functional::ReconstructionError& error) {
  if (group.alone()) return;
  const auto packed = at::cat({counts, error.words()});
  group.sum_(packed, "counts and errors");
  const auto size = counts.size(0);
  counts.copy_(packed.narrow(0, 0, size));
  error.set_words(packed.narrow(0, size, packed.size(0) - size).contiguous());
}

}  // namespace

Evaluation evaluate_blocks(const char* op, const functional::VectorBlocks& vectors,
                           const std::vector<int64_t>& sizes,
                           const std::function<EvaluatedBlock(const at::Tensor& block)>& quantize,
                           const std::function<void(int64_t rows)>& progress) {
  const auto all = at::zeros({std::accumulate(sizes.begin(), sizes.end(), int64_t{0})}, at::kLong);
  Evaluation output;
  if (!sizes.empty()) output.counts = all.split_with_sizes(sizes);
  for (int64_t first = 0; first < vectors.rows; first += vectors.block_rows) {
    const auto count = std::min(vectors.block_rows, vectors.rows - first);
    const auto [x, codes, decoded] = quantize(functional::read_block(vectors, first));
    for (size_t i = 0; i < sizes.size(); ++i)
      output.counts[i] += at::bincount(codes.select(1, static_cast<int64_t>(i)), {}, sizes[i]);
    output.error.add(x, decoded);
    if (progress) progress(first + count);
  }
  add_over_group_({vectors.shard.group_name, {op, {}}}, all, output.error);
  return output;
}

}  // namespace torchvq::fit
