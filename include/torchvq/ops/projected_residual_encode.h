// Encoding by a residual stack whose levels search between two projections, like those of DAC:
// factorised codes (docs/design/residual.md).
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/api/include/torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Q >= 1 levels, which quantize C features with latents and codes of D features.
struct ProjectedLevels {
  std::vector<at::Tensor> codebooks;    ///< (K_n, D), K_n >= 1; sizes may differ
  std::vector<at::Tensor> in_weights;   ///< (D, C), or (D, C, 1) for a convolution
  std::vector<at::Tensor> in_biases;    ///< (D,)
  std::vector<at::Tensor> out_weights;  ///< (C, D), or (C, D, 1)
  std::vector<at::Tensor> out_biases;   ///< (C,)
};

struct ProjectedResidualEncodeOptions {
  /// "euclidean", or "cosine": squared distances between unit vectors. Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// Added to the squared distance of zero codes with "cosine": they have no direction, and their
  /// distance is 1. Finite. Default: 0.
  TORCH_ARG(double, zero_code) = 0;
};

struct ProjectedResidualEncodeOutput {
  at::Tensor quantized;  ///< (B, T, C): the sum of the outputs of the levels
  at::Tensor indices;    ///< (B, T, Q), int64
  at::Tensor latents;    ///< (B, T, Q D): level after level
  at::Tensor errors;     ///< (B, T, Q): squared distances between latents and their codes
};

/// Encodes every vector with all levels, greedily.
///
/// Formula   r_0 = x, l_n = in_n r_n + a_n, c_n = the code of level n that is nearest to l_n,
///           p_n = out_n (l_n + (c_n - l_n)) + b_n, r_{n+1} = r_n - p_n;
///           quantized = ((0 + p_0) + p_1) + ..., each operation rounded once.
/// Paper     Kumar et al. 2023, arXiv:2306.06546 (factorised codes, compared by angle).
/// Exact     c_n is the code that `nearest_code` finds for the returned latents.
///           With "cosine" it compares unit vectors, v / max(|v|, 1e-12), by their squared
///           distances; squares are added in index order and each operation is rounded to the
///           dtype, as torch's `normalize` does with 8 features in float32.
/// Ties      the lowest index wins.
///
/// @param x        (B, T, C), floating point, any strides. C >= 1.
/// @param levels   see ProjectedLevels; floating point, any strides, on the device of x.
/// @param options  see ProjectedResidualEncodeOptions.
/// @return         see ProjectedResidualEncodeOutput. Results have the memory layout of x: features
///                 first if x is the transpose of a contiguous (B, C, T).
///
/// Dtype        float64 if x or a tensor of a level is float64, otherwise float32.
/// Gradient     none: for evaluation.
/// Determinism  on CPU the same bits for every instruction set and thread count, and for single
///              frames as for the whole clip: a matrix-vector product adds its terms into 16
///              partial sums, by their index modulo 16, and then adds these pairwise. Other devices
///              add in other orders: results agree to rounding, and indices except for near ties.
/// Non-finite   a latent with a NaN or infinity gets index 0, and NaN from there on. A code with a
///              NaN or infinity is nearest only if all codes have one.
/// Empty        B == 0 or T == 0 gives empty results.
/// Memory       O(B T (C + Q D) + Q K D + Q C D). On CPU a tile of rows passes all levels while it
///              is in cache.
/// Throws       c10::ValueError for bad shapes, numbers of levels, metric or zero_code, c10::TypeError
///              for bad dtypes.
/// Example      auto found = torchvq::ops::projected_residual_encode(x, levels,
///                  torchvq::ops::ProjectedResidualEncodeOptions().metric("cosine"));
TORCHVQ_API ProjectedResidualEncodeOutput
projected_residual_encode(const at::Tensor& x, const ProjectedLevels& levels,
                          const ProjectedResidualEncodeOptions& options = {});

}  // namespace torchvq::ops
