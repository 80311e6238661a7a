// k-means on vectors that need not fit in memory, for `torchvq fit`.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/fit/evaluate_codebook.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <string>

namespace torchvq::fit {

struct FitCodebookOptions {
  int64_t codebook_size = 0;  ///< codes, in [1, rows]
  int64_t iterations =
      25;            ///< most passes over all vectors; fewer when the codebook settles earlier
  int64_t seed = 0;  ///< for the sample and the first codebook
  std::string metric = "euclidean";  ///< or "cosine": unit vectors, unit codes
};

struct FitCodebookOutput {
  at::Tensor codebook;                ///< (K, D), float32
  EvaluateCodebookOutput evaluation;  ///< of this codebook, on all vectors
  int64_t iterations = 0;             ///< passes made
  bool converged = false;             ///< the last pass moved no code
};

/// Reports progress: pass 0 draws the sample, passes 1 to iterations update the codebook, pass
/// iterations + 1 measures the error. `rows` counts within the pass.
using FitProgress = std::function<void(int64_t pass, int64_t rows)>;

/// Fits a codebook with k-means (Lloyd's algorithm) on all vectors.
///
/// The first codebook comes from a sample: one vector, drawn with `seed`, from each of S equal
/// stretches of the rows, clustered like ops::kmeans() does it, but with steps to the means. S is
/// 65536, but at most the number of rows, and for wide vectors 2^25 / D or 64 K, if that is more; with
/// more than 32768 codes it is 2 K. Then every pass assigns all vectors, replaces each code by the mean
/// of its vectors, and moves codes without vectors to the vectors farthest from their codes. For the
/// cosine metric means are scaled to unit length, and zero vectors make no codes.
///
/// Paper        Lloyd 1982, "Least squares quantization in PCM"
/// Memory       O(block_rows * D + S * D + K * D), for any number of rows.
/// Determinism  the same bits for any block size and any number of threads.
/// Throws       c10::ValueError for a codebook size outside [1, rows], iterations < 0, an unknown
///              metric, vectors that are not finite.
TORCHVQ_API FitCodebookOutput fit_codebook(const functional::VectorBlocks& vectors,
                                           const FitCodebookOptions& options,
                                           const FitProgress& progress = nullptr);

}  // namespace torchvq::fit
