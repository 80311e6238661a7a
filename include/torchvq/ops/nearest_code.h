// The search for the nearest code of every vector: exact, with the same result on every machine
// (docs/design/search.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/api/include/torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::ops {

struct NearestCodeOptions {
  /// "euclidean" or "cosine". Default: "euclidean".
  TORCH_ARG(std::string, metric) = "euclidean";
  /// (H, K), (1, K) or (K,), floating point: added to the distance of each code before codes are
  /// compared. A code with a larger bias is chosen less often, one with infinity or NaN never.
  /// Default: none.
  TORCH_ARG(std::optional<at::Tensor>, bias);
  /// (H, N), or (N,) for x of shape (N, D), bool; True marks a real token. Padding may hold anything;
  /// on CPU it is not searched. Default: all real.
  TORCH_ARG(std::optional<at::Tensor>, mask);
  /// Return the k nearest codes on a trailing axis, best first, in [1, K]. Default: one code and no
  /// trailing axis.
  TORCH_ARG(std::optional<int64_t>, topk);
  /// Whether to return the codes; otherwise `codes` is empty. Default: false.
  TORCH_ARG(bool, return_codes) = false;
  /// Whether to return the distances; otherwise `distances` is empty. Default: false.
  TORCH_ARG(bool, return_distances) = false;
};

struct NearestCodeOutput {
  at::Tensor indices;    ///< (H, N), or (H, N, k) with topk; int64
  at::Tensor codes;      ///< shape of indices + (D,), or (0,) if not requested
  at::Tensor distances;  ///< shape of indices, or (0,) if not requested
};

/// Finds the nearest code of every vector.
///
/// Formula   euclidean: distance = ||x - c||^2 + bias,
///                      score = sum_d (c_d^2 / 2 - x_d c_d) + bias / 2
///           cosine:    distance = 1 - <x, c> / (||x|| ||c||) + bias,
///                      score = sum_d (-x^_d c^_d) + bias
///           indices[h, n] = argmin_k score; distance = 2 score + ||x||^2, or 1 + score.
/// Exact     The score is defined to the last bit, so that every instruction set,
///           thread count, block size and device picks the same code: the sum runs over d in index
///           order in float64 from 0, on values of the computation's dtype; each term c_d^2 / 2 -
///           x_d c_d is one rounded subtraction of rounded products (exact ones for float32); the
///           bias is added last. For cosine x^ and c^ are unit vectors: the norm is a float64 sum
///           of squares in index order, the quotient is rounded to the computation's dtype, and
///           zero vectors stay zero.
/// Ties      the lowest index wins.
///
/// @param x         (H, N, D) or (N, D), floating point, any strides. D >= 1.
/// @param codebook  (H, K, D), or (1, K, D) or (K, D) shared by all heads, floating point, any
///                  strides. K >= 1.
/// @param options   see NearestCodeOptions.
/// @return          indices; codes: rows of the codebook as given, in the computation's dtype;
///                  distances: computed from x and the chosen code in float64, then rounded to the
///                  computation's dtype. x of shape (N, D) gives results without the axis H.
///
/// Dtype        the computation's dtype is float64 if x or codebook is float64, otherwise float32.
/// Gradient     indices: none. codes: to codebook, the sum over each code's rows. distances: to x,
///              codebook and bias. The chosen codes are kept for backward, so that updating the
///              codebook in place afterwards is harmless.
/// Non-finite   a row of x with a NaN or infinity gets index 0 (with topk: 0 .. k-1), codes and
///              distances of NaN, and sends no gradient to the codebook. A code with a NaN or
///              infinity, in itself or its bias, ranks behind all others; such codes are ordered by
///              index.
/// Padding      index -1, code and distance 0, no gradient.
/// Empty        N == 0 gives empty results.
/// Memory       O(N D + K D); the N x K scores are never stored.
/// Throws       c10::ValueError for bad shapes, metric or topk, c10::TypeError for bad dtypes.
/// Example      auto [indices, codes, distances] = torchvq::ops::nearest_code(x, codebook);
TORCHVQ_API NearestCodeOutput nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                                           const NearestCodeOptions& options = {});

}  // namespace torchvq::ops
