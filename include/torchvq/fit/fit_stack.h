// Fits residual codebooks, in one group of features or several, to vectors that need not fit in
// memory, for `torchvq fit --levels`.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/fit/codebook_stack.h>
#include <torchvq/fit/evaluate_stack.h>
#include <torchvq/fit/fit_codebook.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace torchvq::fit {

struct FitStackOptions {
  FitCodebookOptions level;  ///< of every level; the metric is euclidean unless there is one level
  int64_t levels = 1;        ///< per group
  int64_t groups = 1;        ///< parts that the features are split into; divides the dimension
  int64_t beam = 1;          ///< paths of the search that measures the result
  /// At most this many joint refits of the levels of each group (refine_codebooks.h), which search
  /// with a beam of kRefineBeam, or `beam` if that is wider. 0: none.
  int64_t refine = 0;
  double refine_noise = 0;  ///< RefineCodebooksOptions::noise
  /// Bytes for the residuals of the vectors. Residuals that do not fit are recomputed in every
  /// pass, which is slower and gives the same result.
  int64_t memory = int64_t{1} << 30;
};

constexpr int64_t kRefineBeam = 5;

struct FitStackOutput {
  CodebookStack stack;
  std::vector<at::Tensor> counts;  ///< per column (K,), int64: vectors per code in the fit
  Evaluation evaluation;           ///< with `beam`, on all vectors
  int64_t iterations = 0;          ///< passes made, over all codebooks
  bool converged = true;           ///< the last pass over each codebook moved no code
  int64_t refits = 0;              ///< refits of the group that took most
  double mse_before_refits = 0;    ///< with the beam of the refits, like the next
  double mse_after_refits = 0;     ///< never above mse_before_refits
};

/// Like FitProgress, with the number of the codebook: 0 to groups * levels - 1, then one more for
/// each group while it is refitted (pass: searches done), and one for the measurement of the
/// result.
using FitStackProgress = std::function<void(int64_t column, int64_t pass, int64_t rows)>;

/// Fits each level with fit_codebook() to the residual of the levels before, group after group.
///
/// Paper        Barnes et al. 1996, "Advances in residual vector quantization"
/// Memory       as fit_codebook(), plus `memory`.
/// Determinism  the same bits for any block size, any memory, any number of threads.
/// Throws       as fit_codebook(); c10::ValueError for levels, groups or beam < 1, groups that do
///              not divide the dimension, the cosine metric with several codebooks or refine > 0,
///              refine < 0, refine_noise < 0 or not finite, and vectors so large that float32
///              cannot hold what a level leaves.
TORCHVQ_API FitStackOutput fit_stack(const functional::VectorBlocks& vectors,
                                     const FitStackOptions& options,
                                     const FitStackProgress& progress = nullptr);

}  // namespace torchvq::fit
