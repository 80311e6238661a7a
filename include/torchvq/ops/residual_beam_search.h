// Encoding by beam search: chooses a code of every level of a residual stack so that the final
// residual is small (docs/design/residual-beam.md).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/api/include/torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::ops {

struct ResidualBeamSearchOptions {
  /// (H, T) bool, true for real tokens; the others get -1. Default: all are real.
  TORCH_ARG(std::optional<at::Tensor>, mask);
  /// One int64, in [1, Q]: the number of levels in use; the others get -1. Default: all.
  TORCH_ARG(std::optional<at::Tensor>, depth);
  /// One finite, non-negative number per level, or none: the score of a path is then the sum over
  /// its levels of weight times the squared residual after that level. Default: none.
  TORCH_ARG(std::vector<double>, weights);
};

/// Finds a code of every level for every vector, keeping the `beam` best paths between levels.
///
/// Formula   A path is one code per level so far; r_0 = x, r_{n+1} = r_n - c_n. Its score after
///           level n is the squared residual, sum_d (r_{n,d} - c_{n,d})^2. From the `beam` best
///           paths of level n - 1, all extensions by a code of level n are scored and the `beam`
///           best kept; the result is the best path of the last level.
/// Paper     Babenko and Lempitsky 2014 (additive quantization); Liu et al. 2017,
///           arXiv:1509.05195 (residual quantization by multi-path search).
/// Exact     The score is defined to the last bit: r is kept in the computation's dtype (each
///           subtraction rounded once), the score is a float64 sum over d in index order from 0 of
///           the square of the float64 difference, nothing contracted. So the result does not
///           depend on the instruction set, thread count, split of the tokens or device.
///           With beam == 1, and without weights or with positive ones, each level is
///           `nearest_code`, and the result equals greedy search bit for bit.
/// Ties      the lower path wins: that of the lower code at the first level where they differ.
///
/// @param x          (H, T, D), floating point, any strides. D >= 1.
/// @param codebooks  Q >= 1 tensors (H, K_n, D), or (1, K_n, D) or (K_n, D) shared by all heads,
///                   floating point, K_n >= 1; sizes may differ.
/// @param beam       at least 1; a beam wider than the number of paths costs nothing.
/// @param options    see ResidualBeamSearchOptions.
/// @return           (H, T, Q), int64.
///
/// Dtype        float64 if x or a codebook is float64, otherwise float32.
/// Gradient     none.
/// Non-finite   a row of x with a NaN or infinity gets index 0 at every level. A code with a NaN or
///              infinity scores infinity, like every path through it.
/// Empty        T == 0 gives an empty result.
/// Memory       O(H T Q) for the result, plus chunks of tokens: never T * beam * K. On CPU also
///              products of codebooks, at most the sum over level pairs of K_m K_n numbers.
/// Throws       c10::ValueError for bad shapes, beam, depth or weights, c10::TypeError for
///              bad dtypes.
/// Example      auto indices = torchvq::ops::residual_beam_search(x, codebooks, 4);
TORCHVQ_API at::Tensor residual_beam_search(const at::Tensor& x, at::TensorList codebooks,
                                            int64_t beam,
                                            const ResidualBeamSearchOptions& options = {});

}  // namespace torchvq::ops
