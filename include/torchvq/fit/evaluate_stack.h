// Measures the error of a stack of codebooks on vectors that need not fit in memory, for `torchvq
// eval`.
#pragma once

#include <torchvq/export.h>
#include <torchvq/fit/codebook_stack.h>
#include <torchvq/fit/evaluation.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>

namespace torchvq::fit {

/// Encodes and decodes all vectors, and adds up counts and errors. With the cosine metric vectors
/// and codes are scaled to unit length first.
///
/// @param beam      see encode_stack().
/// @param progress  called after each block with the number of rows done; may be null.
///
/// Determinism  the same bits for any block size, number of threads, and split into shards.
/// Throws       as encode_stack().
TORCHVQ_API Evaluation evaluate_stack(const functional::VectorBlocks& vectors,
                                      const CodebookStack& stack, int64_t beam = 1,
                                      const std::function<void(int64_t rows)>& progress = nullptr);

}  // namespace torchvq::fit
