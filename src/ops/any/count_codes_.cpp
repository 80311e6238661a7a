// Any device: integer scatter_add is independent of order, so atomics on a
// GPU give the same counts.
#include "ops/count_codes_.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include "detail/index_range.h"

namespace torchvq {
namespace {

/// The histogram of one level, (H, K), in a new tensor, so that nothing is written before all
/// indices are checked.
at::Tensor count_level(const at::Tensor& counts, const at::Tensor& indices) {
  detail::check_index_range("count_codes_", "indices", indices, counts.size(1));
  const auto present = indices.ne(-1);
  // Other negative indices are kept, so that scatter reports them as out of bounds.
  return counts.new_zeros(counts.sizes())
      .scatter_add_(1, indices.masked_fill(present.logical_not(), 0), present.to(at::kLong));
}

void count_codes_(at::TensorList counts, at::TensorList indices) {
  detail::check_count_codes_(counts, indices);
  std::vector<at::Tensor> found;
  for (size_t level = 0; level < indices.size(); ++level) {
    found.push_back(count_level(counts[level], indices[level]));
  }
  for (size_t level = 0; level < counts.size(); ++level) {
    if (level < found.size()) {
      counts[level].copy_(found[level]);
    } else {
      counts[level].zero_();
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("count_codes_", count_codes_); }

}  // namespace torchvq
