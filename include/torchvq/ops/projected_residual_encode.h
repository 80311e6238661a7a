// Encoding by a residual stack whose levels search between two projections, as DAC's do: factorised
// codes (docs/design/residual.md).
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/api/include/torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Q >= 1 levels, C features of what they quantize, D of their latents and codes.
struct ProjectedLevels {
  std::vector<at::Tensor> codebooks;    ///< (K_n, D), K_n >= 1; sizes may differ
  std::vector<at::Tensor> in_weights;   ///< (D, C), or (D, C, 1) as a convolution has it
  std::vector<at::Tensor> in_biases;    ///< (D,)
  std::vector<at::Tensor> out_weights;  ///< (C, D), or (C, D, 1)
  std::vector<at::Tensor> out_biases;   ///< (C,)
};

struct ProjectedResidualEncodeOptions {
  /// "euclidean", or "cosine": squared distances between unit vectors. Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// Added to the squared distance of codes of zeros, with "cosine": they have no direction, and the
  /// distance 1. Finite. Default: 0.
  TORCH_ARG(double, zero_code) = 0;
};

struct ProjectedResidualEncodeOutput {
  at::Tensor quantized;  ///< (B, T, C): the sum of what the levels have taken
  at::Tensor indices;    ///< (B, T, Q), int64
  at::Tensor latents;    ///< (B, T, Q D): of each level, one after the other
  at::Tensor errors;     ///< (B, T, Q): squared distances between latents and their codes
};

/// Walks every vector through all levels, greedily.
///
/// Formula   r_0 = x, l_n = in_n r_n + a_n, c_n = the code of level n that is nearest to l_n,
///           p_n = out_n (l_n + (c_n - l_n)) + b_n, r_{n+1} = r_n - p_n;
///           quantized = ((0 + p_0) + p_1) + ..., each operation rounded once.
/// Paper     Kumar et al. 2023, arXiv:2306.06546 (factorised codes, compared by angle).
/// Exact     c_n is what `nearest_code` finds among the codes, for the latents as they are returned.
///           With "cosine" it compares unit vectors, v / max(|v|, 1e-12), by their squared
///           distances; squares are added in order of index and each operation is rounded to the
///           dtype, which is what torch's `normalize` does with 8 features in float32.
/// Ties      the lowest index wins.
///
/// @param x        (B, T, C), floating point, any strides. C >= 1.
/// @param levels   see ProjectedLevels; floating point, any strides, on the device of x.
/// @param options  see ProjectedResidualEncodeOptions.
/// @return         see ProjectedResidualEncodeOutput. Results lie in memory as x does: features
///                 first where x is the transposed of a contiguous (B, C, T).
///
/// Dtype        float64 if x or a tensor of a level is float64, otherwise float32.
/// Gradient     none: for evaluation.
/// Determinism  on CPU the same bits on every instruction set and thread count, and frame by frame
///              those of the whole clip: a product of a matrix and a vector adds its terms into 16
///              partial sums, by their index modulo 16, and these pairwise. Other devices add up
///              in orders of their own: results agree to rounding, and tokens but for near ties.
/// Non-finite   where a latent has a NaN or infinity, index 0, and NaN from there on. A code with one
///              is nearest only where all codes have.
/// Empty        B == 0 or T == 0 gives empty results.
/// Memory       O(B T (C + Q D) + Q K D + Q C D). On CPU a tile of rows goes through all levels while
///              it is in cache.
/// Throws       c10::ValueError for bad shapes, numbers of levels, metric or zero_code, c10::TypeError
///              for bad dtypes.
/// Example      auto found = torchvq::ops::projected_residual_encode(x, levels,
///                  torchvq::ops::ProjectedResidualEncodeOptions().metric("cosine"));
TORCHVQ_API ProjectedResidualEncodeOutput
projected_residual_encode(const at::Tensor& x, const ProjectedLevels& levels,
                          const ProjectedResidualEncodeOptions& options = {});

}  // namespace torchvq::ops
