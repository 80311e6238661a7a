// Measures the error of a codebook on vectors that need not fit in memory, for `torchvq eval`.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/functional/reconstruction_error.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <string>

namespace torchvq::fit {

struct EvaluateCodebookOutput {
  at::Tensor counts;                      ///< (K,), int64: vectors per code
  functional::ReconstructionError error;  ///< between vectors and their nearest codes
};

/// Assigns all vectors to their nearest codes, and adds up counts and errors. With the cosine
/// metric vectors and codes are scaled to unit length first.
///
/// @param codebook  (K, D), float32. K >= 1.
/// @param metric    "euclidean" or "cosine".
/// @param progress  called after each block with the number of rows done; may be null.
///
/// Memory       O(block_rows * D + K * D).
/// Determinism  the same bits for any block size and any number of threads.
/// Throws       c10::ValueError for an unknown metric or another dimension than the codebook's.
TORCHVQ_API EvaluateCodebookOutput
evaluate_codebook(const functional::VectorBlocks& vectors, const at::Tensor& codebook,
                  const std::string& metric = "euclidean",
                  const std::function<void(int64_t rows)>& progress = nullptr);

}  // namespace torchvq::fit
