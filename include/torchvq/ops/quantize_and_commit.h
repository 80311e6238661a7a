// The plain forward of a codebook as one node of the graph: search, estimator and commitment loss.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Result of quantize_and_commit().
struct QuantizedAndCommitted {
  at::Tensor quantized;   ///< shape and dtype of x: the codes, with the estimator's gradient
  at::Tensor indices;     ///< (B, *), int64
  at::Tensor codes;       ///< (1, N, D), float64 for float64 x, else float32; no gradient
  at::Tensor commitment;  ///< (), dtype of codes
};

/// What nearest_code(), an estimator and commitment_loss() give for the same tokens, bit for bit.
/// One node of the graph instead of several: of few tokens the nodes cost more than the numbers.
///
/// Formula      i = argmin_k |x - c_k|, q = c_i, commitment = mean((x - q)^2);
///              dx = E^T dq + 2 (x - q) / (number of values) dcommitment, with E^T of the estimator
///
/// @param x          (B, *, D), floating point.
/// @param codebook   (1, K, D), floating point.
/// @param estimator  `straight_through`, `rotation_trick` (rotation_trick()), or `none`: no
///                   gradient from quantized.
/// @param mask       (1, N), bool; True marks a real token. Padding may hold anything; it has index -1,
///                   codes of 0 and no part in the commitment loss. Default: all real.
/// @param zeros_for_masked  whether quantized is 0 at padding, without gradient; otherwise it is x there,
///                   with its gradient.
///
/// Gradient     to x; twice differentiable but for the rotation trick; none to the codebook.
/// Empty        no tokens: empty results, commitment 0; no real token: commitment 0 with zero gradient.
/// Ties         the code with the smallest index, as nearest_code().
/// Determinism  bitwise repeatable for any number of threads.
/// Throws       c10::ValueError for bad shapes and names, c10::TypeError for bad dtypes,
///              c10::NotImplementedError in backward with create_graph=True and rotation_trick.
TORCHVQ_API QuantizedAndCommitted quantize_and_commit(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      std::string_view estimator,
                                                      const std::optional<at::Tensor>& mask = {},
                                                      bool zeros_for_masked = true);

/// dx of the formula above, in shape and dtype of x; `rotates` for the rotation trick, otherwise
/// straight-through. No gradient.
///
/// @param grad_quantized   shape of x.
/// @param grad_commitment  (), dtype of codes.
/// @param x                (B, *, D), the input of forward.
/// @param codes            (1, N, D), its output.
/// @param mask             (1, N), as in forward.
TORCHVQ_API at::Tensor quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                                    const at::Tensor& grad_commitment,
                                                    const at::Tensor& x, const at::Tensor& codes,
                                                    bool rotates,
                                                    const std::optional<at::Tensor>& mask = {},
                                                    bool zeros_for_masked = true);

}  // namespace torchvq::ops
