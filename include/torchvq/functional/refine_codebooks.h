// Joint refinement of residual codebooks: codes by beam search, then all codebooks at once by least
// squares (docs/design/refinement.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/functional/vector_blocks.h>

namespace torchvq::functional {

/// Options of refine_codebooks().
struct RefineCodebooksOptions {
  /// The largest number of refits, at least 0; each costs one search of all vectors. Default: 10.
  TORCH_ARG(int64_t, iterations) = 10;
  /// Paths of the search, at least 1; best is the beam that encoding will use. Default: 5.
  TORCH_ARG(int64_t, beam) = 5;
  /// A refit that lowers the error by less than this share of the error is the last, at least 0.
  /// Default: 1e-3.
  TORCH_ARG(double, tolerance) = 1e-3;
  /// The number of vectors that the current code counts for in its refit, above 0. A code without
  /// vectors stays. Default: 8.
  TORCH_ARG(double, ridge) = 8;
  /// Noise that codes get in the first three quarters of the searches, in standard deviations of
  /// each feature over the codes of a level (or three times the root mean squared error before,
  /// where that is less); it falls to 0. With 12 refits or more it escapes the nearest minimum;
  /// with few the error may end above the start, and then nothing changes. At least 0; with 0 every
  /// search is the ordinary one. Default: 0.
  TORCH_ARG(double, noise) = 0;
  /// Seed of the noise. Default: 0.
  TORCH_ARG(int64_t, seed) = 0;
  /// A weight for each level, or none; see ops/residual_beam_search.h. Default: none.
  TORCH_ARG(std::vector<double>, weights);
  /// Bytes that the joint system may take. A larger system is not built: levels are then refitted
  /// one after the other, which needs more refits for the same error. Default: 1 GiB.
  TORCH_ARG(int64_t, memory) = int64_t{1} << 30;
  /// The caller's name in errors. Default: "refine_codebooks".
  TORCH_ARG(std::string, label) = "refine_codebooks";
};

struct RefineCodebooksOutput {
  std::vector<at::Tensor> codebooks;  ///< the best seen, (K_n, D), float32, new
  std::vector<at::Tensor> counts;     ///< (K_n,), int64: vectors that chose each of their codes
  double error_before = 0;            ///< sum over vectors of ||x - sum of its codes||^2
  double error_after = 0;             ///< with `codebooks`: never above error_before
  int64_t vectors = 0;                ///< of all processes
  int64_t iterations = 0;             ///< refits made
};

/// Refits the codebooks of a residual stack together, for the codes that a beam search finds.
///
/// Formula      C <- argmin sum_n ||x_n - sum_q C_q[i_nq]||^2 + ridge * sum_qk ||C_q[k] -
///              C'_q[k]||^2, C' the codebooks before and i the codes that residual_beam_search()
///              finds with them; again until the error of the search settles. Early searches see
///              the codes with noise. Levels that are the same tensor are one codebook, and stay
///              so.
/// Paper        Babenko, Lempitsky 2014, Additive quantization for extreme vector compression;
///              Martinez et al. 2018, LSQ++
/// Search       the ordinary one, which encoding uses: codes that only a search over all levels
///              together would find are useless.
///
/// @param vectors    float32, on the device of the codebooks. Of several processes each has its
///                   own; all must call, with the same codebooks and options.
/// @param codebooks  Q >= 1 tensors (K_n, D), float32.
/// @param progress   called after each block with the refits made and the rows searched since; may
///                   be null.
///
/// Gradient     none.
/// Ties         as residual_beam_search(): the lower path; of equally good codebooks the earlier.
/// Precision    counts and sums are exact integers, the system is solved in float64.
/// Determinism  the same bits for any block size and number of threads, and for any split of the
///              vectors over processes: the first one solves, and sends the result to the others.
/// Memory       counts of all pairs of codes and their system, 24 (sum of K_n)^2 bytes, up to
///              `memory`; beyond that the codes of all vectors, 4 Q bytes each.
/// Throws       c10::ValueError for bad shapes and options, and where there are fewer vectors than
///              codes of a level (no vectors at all included); c10::TypeError for bad dtypes.
TORCHVQ_API RefineCodebooksOutput
refine_codebooks(const VectorBlocks& vectors, at::TensorList codebooks,
                 const RefineCodebooksOptions& options = {},
                 const std::function<void(int64_t pass, int64_t rows)>& progress = nullptr);

}  // namespace torchvq::functional
