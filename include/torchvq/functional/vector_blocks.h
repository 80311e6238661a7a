// Vectors that need not fit in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace torchvq::functional {

/// Vectors that can be read again and again, a block of rows at a time.
struct VectorBlocks {
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t block_rows = 65536;  // most rows read at once; changes memory and speed, never a result
  /// Rows [first, first + count) as (count, dim), float32, finite, CPU. Called with multiples of
  /// block_rows, in ascending order, and again from 0.
  std::function<at::Tensor(int64_t first, int64_t count)> read;
};

}  // namespace torchvq::functional
