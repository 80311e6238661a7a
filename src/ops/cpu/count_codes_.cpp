// One pass over the indices. Serial: it takes a few microseconds, much less than a search.
#include "ops/count_codes_.h"

#include <algorithm>
#include <vector>

#include <torch/library.h>

namespace torchvq {
namespace {

/// The histogram of one level (H, K), separate so that nothing is written before
/// all indices are checked.
std::vector<int64_t> count_level(const at::Tensor& counts, const at::Tensor& indices) {
  const int64_t heads = counts.size(0), size = counts.size(1), tokens = indices.size(1);
  std::vector<int64_t> found(static_cast<size_t>(heads * size), 0);
  const auto contiguous = indices.contiguous();
  const auto* index = contiguous.const_data_ptr<int64_t>();
  for (int64_t h = 0; h < heads; ++h) {
    auto* row = found.data() + h * size;
    for (int64_t n = 0; n < tokens; ++n) {
      const auto k = index[h * tokens + n];
      TORCH_CHECK_INDEX(k >= -1 && k < size, "count_codes_: expected indices to be in [-1, ", size,
                        "), but got ", k);
      if (k >= 0) ++row[k];
    }
  }
  return found;
}

void count_codes_(at::TensorList counts, at::TensorList indices) {
  detail::check_count_codes_(counts, indices);
  std::vector<std::vector<int64_t>> found;
  for (size_t level = 0; level < indices.size(); ++level) {
    found.push_back(count_level(counts[level], indices[level]));
  }
  for (size_t level = 0; level < counts.size(); ++level) {
    auto* row = counts[level].mutable_data_ptr<int64_t>();
    if (level < found.size()) {
      std::copy(found[level].begin(), found[level].end(), row);
    } else {
      std::fill_n(row, counts[level].numel(), int64_t{0});
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("count_codes_", count_codes_); }

}  // namespace torchvq
