#include "functional/sample_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace torchvq::functional {
namespace {

// Stretch i of `parts` begins here; the product needs more than 64 bits for large files.
int64_t begin_of(int64_t i, int64_t rows, int64_t parts) {
  return static_cast<int64_t>(static_cast<__int128>(i) * rows / parts);
}

// SplitMix64 (Steele, Lea, Flood 2014): a good mixture of seed and counter.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

SampledRows::SampledRows(int64_t rows, int64_t size, int64_t seed) {
  rows_.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const auto begin = begin_of(i, rows, size), end = begin_of(i + 1, rows, size);
    const auto draw = mix(mix(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(i));
    rows_.push_back(begin + static_cast<int64_t>(draw % static_cast<uint64_t>(end - begin)));
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

}  // namespace torchvq::functional
