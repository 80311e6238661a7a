#include "functional/refine_heads.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include "functional/refit_codebooks.h"

namespace torchvq::functional {
namespace {

// Number of rows that a search processes at a time.
constexpr int64_t kRowsPerBlock = 32768;

VectorBlocks blocks_of(const at::Tensor& x, const std::string& group_name) {
  VectorBlocks blocks;
  blocks.rows = x.size(0);
  blocks.dim = x.size(1);
  blocks.block_rows = kRowsPerBlock;
  blocks.read = [x](int64_t first, int64_t count) { return x.narrow(0, first, count); };
  blocks.shard.group_name = group_name;
  return blocks;
}

// The rows of a head that count, as float32.
at::Tensor usable_rows(const at::Tensor& x, const std::optional<at::Tensor>& mask, int64_t head) {
  const auto own = x.select(0, head).to(at::kFloat);
  auto usable = own.isfinite().all(-1);
  if (mask) usable = usable.logical_and(mask->dim() == 1 ? *mask : mask->select(0, head));
  return own.index({usable}).contiguous();
}

// The levels of a head; levels that share a tensor still do so afterwards.
std::vector<at::Tensor> levels_of(at::TensorList codebooks, int64_t head) {
  std::vector<at::Tensor> levels;
  for (size_t q = 0; q < codebooks.size(); ++q) {
    size_t first = 0;
    while (!is_same_codebook(codebooks[first], codebooks[q])) ++first;
    levels.push_back(first < q ? levels[first]
                               : codebooks[q].select(0, head).to(at::kFloat).contiguous());
  }
  return levels;
}

}  // namespace

RefinedHeads refine_heads(const at::Tensor& x, at::TensorList codebooks,
                          const std::optional<at::Tensor>& mask,
                          const RefineCodebooksOptions& options, const std::string& group_name) {
  std::vector<std::vector<at::Tensor>> levels(codebooks.size());
  RefinedHeads refined;
  for (int64_t head = 0; head < x.size(0); ++head) {
    const auto rows = usable_rows(x, mask, head);
    auto found = refine_codebooks(blocks_of(rows, group_name), levels_of(codebooks, head), options);
    for (size_t q = 0; q < levels.size(); ++q) levels[q].push_back(found.codebooks[q]);
    refined.heads.push_back(std::move(found));
  }
  for (size_t q = 0; q < levels.size(); ++q) {
    refined.codebooks.push_back(at::stack(levels[q]).to(codebooks[q].scalar_type()));
  }
  return refined;
}

}  // namespace torchvq::functional
