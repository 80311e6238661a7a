// Measures the error of a stack of codebooks on vectors that need not fit in memory, for `torchvq
// eval`.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/fit/codebook_stack.h>
#include <torchvq/functional/reconstruction_error.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace torchvq::fit {

struct EvaluateStackOutput {
  std::vector<at::Tensor> counts;         // per column of the codes (K,), int64: vectors per code
  functional::ReconstructionError error;  // between vectors and decode_stack(encode_stack(vectors))
};

/// Encodes and decodes all vectors, and adds up counts and errors. With the cosine metric vectors
/// and codes are scaled to unit length first.
///
/// @param beam      see encode_stack().
/// @param progress  called after each block with the number of rows done; may be null.
///
/// Determinism  the same bits for any block size, number of threads, and split into shards.
/// Throws       as encode_stack().
TORCHVQ_API EvaluateStackOutput
evaluate_stack(const functional::VectorBlocks& vectors, const CodebookStack& stack,
               int64_t beam = 1, const std::function<void(int64_t rows)>& progress = nullptr);

}  // namespace torchvq::fit
