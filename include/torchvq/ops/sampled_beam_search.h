// Beam search among randomly chosen codes: `beam_size` with `stochastic_sample_codes`.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/ops/residual_beam_search.h>

namespace torchvq::ops {

/// Draws codes of every level for every vector, and keeps the `beam` best paths between levels.
///
/// Formula      At every level each path draws min(beam, K) different codes by `sample_codes` of its
///              residual; among all of these extensions `extend_paths` keeps the `beam` best. The
///              result is the best path of the last level. With beam == 1 each level is
///              `sample_codes`.
/// Paper        Kool et al. 2019, arXiv:1903.06059 (draws without replacement)
/// Parity       `beam_size` with `stochastic_sample_codes` of the reference in training; other
///              draws, and paths rank by their last residual, or by explicit weights
///
/// @param x            (H, T, D), floating point, any strides. D >= 1.
/// @param codebooks    Q >= 1 tensors (H, K_n, D), or (1, K_n, D) or (K_n, D) shared by all heads,
///                     floating point, K_n >= 1; sizes may differ.
/// @param rngs         for each level (2,), int64: (seed, step).
/// @param beam         at least 1.
/// @param temperature  of `sample_codes`; finite and non-negative. At 0 candidates are the nearest
///                     codes, and euclidean the search is `residual_beam_search` without weights
///                     or with positive ones, but for ties of rounded sums.
/// @param metric       of the draws: "euclidean" or "cosine". Residuals and scores are euclidean.
/// @param options      see ResidualBeamSearchOptions.
/// @return             (H, T, Q), int64; -1 where masked, and for levels that are not in use.
///
/// Dtype        float64 if x or a codebook is float64, otherwise float32.
/// Gradient     none.
/// Ties         see sample_codes and extend_paths.
/// Non-finite   a row of x with a NaN or infinity gets index 0 at every level.
/// Empty        T == 0 gives an empty result.
/// Memory       O(H T beam (D + Q)), and candidates of a chunk of tokens at a time.
/// Determinism  that of sample_codes.
/// Throws       c10::ValueError for bad shapes, beam, temperature, metric, depth or weights,
///              c10::TypeError for bad dtypes.
TORCHVQ_API at::Tensor sampled_beam_search(const at::Tensor& x, at::TensorList codebooks,
                                           at::TensorList rngs, int64_t beam, double temperature,
                                           c10::string_view metric,
                                           const ResidualBeamSearchOptions& options = {});

}  // namespace torchvq::ops
