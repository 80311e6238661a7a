// Reading of vectors whose source is the caller's.
#pragma once

#include <algorithm>

#include <c10/util/Exception.h>
#include <torchvq/functional/vector_blocks.h>

namespace torchvq::functional {

inline void check_blocks(const char* op, const VectorBlocks& vectors) {
  TORCH_CHECK_VALUE(vectors.rows >= 0 && vectors.dim >= 1, op,
                    ": expected vectors of at least 0 rows and 1 feature, but got ", vectors.rows,
                    " and ", vectors.dim);
  TORCH_CHECK_VALUE(vectors.block_rows >= 1, op,
                    ": expected block_rows of vectors to be at least 1, but got ",
                    vectors.block_rows);
  TORCH_CHECK_VALUE(vectors.read != nullptr, op,
                    ": expected vectors to have a function that reads them, but got none");
}

/// The rows from `first` on: a block, or those that are left.
inline at::Tensor read_block(const VectorBlocks& vectors, int64_t first) {
  const auto count = std::min(vectors.block_rows, vectors.rows - first);
  auto block = vectors.read(first, count);
  TORCH_CHECK_TYPE(block.defined() && block.scalar_type() == at::kFloat,
                   "VectorBlocks: expected read to give float32, but got ",
                   block.defined() ? c10::toString(block.scalar_type()) : "an undefined tensor");
  TORCH_CHECK_VALUE(block.dim() == 2 && block.size(0) == count && block.size(1) == vectors.dim,
                    "VectorBlocks: expected read to give shape (", count, ", ", vectors.dim,
                    "), but got ", block.sizes());
  return block;
}

}  // namespace torchvq::functional
