// The rows of a sample: the same for any split of the rows into blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace torchvq::fit {

/// `size` of `rows` rows: one from each of `size` equal intervals, drawn with `rng` (as in
/// random_numbers()). Such a sample also covers sorted files.
class SampledRows {
 public:
  SampledRows(int64_t rows, int64_t size, const at::Tensor& rng);

  /// The sampled rows of [first, first + count), counted from `first`; int64.
  at::Tensor within(int64_t first, int64_t count) const;

  /// Copies the sampled rows of `block`, which begins at row `first`, to their places in `sample`.
  void copy_to(const at::Tensor& sample, int64_t first, const at::Tensor& block) const;

 private:
  std::vector<int64_t> rows_;  // ascending
};

}  // namespace torchvq::fit
