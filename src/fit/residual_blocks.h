// The residuals, after the levels so far, of vectors that come in blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <vector>

namespace torchvq::fit {

/// The features [first_dim, first_dim + dim) of `vectors`, minus the nearest codes of each level
/// passed to subtract(). Residuals stay in memory if they fit into `memory` bytes, and are computed
/// at each read otherwise; the bits are the same.
class ResidualBlocks {
 public:
  ResidualBlocks(const functional::VectorBlocks& vectors, int64_t first_dim, int64_t dim,
                 int64_t memory);

  /// Valid while this object lives; reads change with subtract().
  functional::VectorBlocks blocks();

  void subtract(const at::Tensor& codebook);

 private:
  at::Tensor read(int64_t first);

  const functional::VectorBlocks& vectors_;
  int64_t first_dim_;
  int64_t dim_;
  std::vector<at::Tensor> levels_;
  std::vector<at::Tensor> kept_;  // one per block, or none at all
};

}  // namespace torchvq::fit
