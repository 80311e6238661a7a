#include "fit/sample_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <torchvq/ops/random_numbers.h>

#include <algorithm>

namespace torchvq::fit {
namespace {

// The first row of interval i of `parts`; the product needs more than 64 bits for large files.
int64_t begin_of(int64_t i, int64_t rows, int64_t parts) {
  return static_cast<int64_t>(static_cast<__int128>(i) * rows / parts);
}

}  // namespace

SampledRows::SampledRows(int64_t rows, int64_t size, const at::Tensor& rng) {
  const auto draws = ops::random_numbers(rng, RandomPurpose::kKmeansSeeding, Distribution::kUniform,
                                         {size}, at::kDouble);
  const auto* draw = draws.const_data_ptr<double>();
  rows_.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const auto begin = begin_of(i, rows, size), end = begin_of(i + 1, rows, size);
    const auto step = static_cast<int64_t>(draw[i] * static_cast<double>(end - begin));
    rows_.push_back(begin + std::min(step, end - begin - 1));
  }
}

at::Tensor SampledRows::within(int64_t first, int64_t count) const {
  const auto begin = std::lower_bound(rows_.begin(), rows_.end(), first);
  const auto end = std::lower_bound(begin, rows_.end(), first + count);
  auto result = at::empty({end - begin}, at::kLong);
  std::transform(begin, end, result.mutable_data_ptr<int64_t>(),
                 [&](int64_t row) { return row - first; });
  return result;
}

void SampledRows::copy_to(const at::Tensor& sample, int64_t first, const at::Tensor& block) const {
  const auto rows = within(first, block.size(0));
  const auto place = std::lower_bound(rows_.begin(), rows_.end(), first) - rows_.begin();
  sample.narrow(0, place, rows.size(0)).copy_(block.index_select(0, rows));
}

}  // namespace torchvq::fit
