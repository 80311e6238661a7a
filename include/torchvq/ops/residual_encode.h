// Encoding by a residual stack: at every level, the nearest code of the residual of the levels
// before (docs/design/residual.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/api/include/torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::ops {

struct ResidualEncodeOptions {
  /// "euclidean" or "cosine". Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// One int64, in [1, Q]: the number of levels in use; the others get -1. Default: all.
  TORCH_ARG(std::optional<at::Tensor>, depth);
  /// (H, T) bool, true for real tokens; the others get -1 and zeros. Default: all are real.
  TORCH_ARG(std::optional<at::Tensor>, mask);
  /// The result of `prepare_codes` for each codebook, Q tensors: makes the search of a few rows (up
  /// to 191 per head) faster, on the CPU, in float32, with "euclidean". Results are the same.
  /// Default: none.
  TORCH_ARG(std::vector<at::Tensor>, prepared);
};

struct ResidualEncodeOutput {
  at::Tensor quantized;  ///< (H, T, D)
  at::Tensor indices;    ///< (H, T, Q), int64
};

/// Encodes every vector with all levels, greedily: each level takes the nearest code of the
/// residual.
///
/// Formula   r_0 = x, c_n = the code of level n that is nearest to r_n, r_{n+1} = r_n - c_n;
///           quantized = ((0 + c_0) + c_1) + ..., each addition and subtraction rounded once.
/// Paper     Juang and Gray 1982 (multiple stage vector quantization); Zeghidour et al. 2021,
///           arXiv:2107.03312.
/// Exact     c_n is the code that `nearest_code` finds, for every instruction set, thread count and
///           device. With "cosine" it compares r_n / |r_n| with unit codes; the code itself is
///           subtracted.
/// Ties      the lowest index wins.
///
/// @param x          (H, T, D), floating point, any strides. D >= 1.
/// @param codebooks  Q >= 1 tensors (H, K_n, D), or (1, K_n, D) or (K_n, D) shared by all heads,
///                   floating point, K_n >= 1; sizes may differ.
/// @param options    see ResidualEncodeOptions.
/// @return           quantized, with the bits of `residual_decode` of the indices (finite rows, in
///                   the computation's dtype), and indices.
///
/// Dtype        float64 if x or a codebook is float64, otherwise float32.
/// Gradient     none: for evaluation. `residual_decode` of the indices has one to the codebooks.
/// Non-finite   a row with a NaN or infinity, in x or in a residual, gets index 0 and NaN from
///              there on. A code with a NaN or infinity is nearest only if all codes have one.
/// Empty        T == 0 gives empty results.
/// Memory       O(H T (D + Q) + Q K D). On CPU a block of rows passes all levels while it is in
///              cache, and each codebook is packed once.
/// Throws       c10::ValueError for bad shapes, metric, depth or prepared, c10::TypeError for bad dtypes.
/// Example      auto [quantized, indices] = torchvq::ops::residual_encode(x, codebooks);
TORCHVQ_API ResidualEncodeOutput residual_encode(const at::Tensor& x, at::TensorList codebooks,
                                                 const ResidualEncodeOptions& options = {});

}  // namespace torchvq::ops
