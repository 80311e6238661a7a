// Any device: integer scatter_add is independent of order, so atomics on a
// GPU give the same counts.
#include "ops/count_codes_.h"

#include <ATen/TensorOperators.h>
#include <torch/library.h>

namespace torchvq {
namespace {

void count_codes_(at::TensorList counts, at::TensorList indices) {
  detail::check_count_codes_(counts, indices);
  for (size_t level = 0; level < counts.size(); ++level) {
    auto row = counts[level];
    row.zero_();
    if (level >= indices.size()) continue;
    const auto present = indices[level].ne(-1);
    // Other negative indices are kept, so that scatter reports them as out of bounds.
    row.scatter_add_(1, indices[level].masked_fill(present.logical_not(), 0),
                     present.to(at::kLong));
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("count_codes_", count_codes_); }

}  // namespace torchvq
