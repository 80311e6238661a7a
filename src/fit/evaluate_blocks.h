// The loop over vectors of every evaluation.
#pragma once

#include <torchvq/fit/evaluation.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace torchvq::fit {

struct EvaluatedBlock {
  at::Tensor x;        ///< (N, D), the vectors as the search sees them
  at::Tensor codes;    ///< (N, columns), int64
  at::Tensor decoded;  ///< (N, D)
};

/// Counts the codes and adds up the errors of all vectors, over all ranks of the shard.
///
/// @param sizes  codes of each column; empty counts none.
Evaluation evaluate_blocks(const char* op, const functional::VectorBlocks& vectors,
                           const std::vector<int64_t>& sizes,
                           const std::function<EvaluatedBlock(const at::Tensor& block)>& quantize,
                           const std::function<void(int64_t rows)>& progress);

}  // namespace torchvq::fit
