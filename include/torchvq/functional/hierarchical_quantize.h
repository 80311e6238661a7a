// The scales of HierarchicalVQ in one call: averages, search, commitment loss, convolutions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/arg.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// The convolutions of the scales; see spread_scale().
struct ScaleConvolutions {
  std::vector<at::Tensor> weights;  ///< (D, D, *kernel) each
  std::vector<at::Tensor> biases;   ///< (D,) each
};

/// Options of hierarchical_quantize().
struct HierarchicalQuantizeOptions {
  /// The grid of each scale, one number per axis, each at least 1.
  TORCH_ARG(std::vector<std::vector<int64_t>>, sizes);
  /// Which of the convolutions each scale uses.
  TORCH_ARG(std::vector<int64_t>, convolutions);
  /// The fraction of the convolution; see spread_scale(). Default: 0.5.
  TORCH_ARG(double, ratio) = 0.5;
  /// Gradient of the codes of a scale to its tokens: "straight_through", "rotation_trick" or "none".
  /// Default: "straight_through".
  TORCH_ARG(std::string, estimator) = "straight_through";
  /// Weight of the commitment loss. Default: 1.
  TORCH_ARG(double, commitment_weight) = 1;
  /// Whether there is a loss, and tokens to learn from. Default: true.
  TORCH_ARG(bool, training) = true;
};

/// Result of hierarchical_quantize(). N is the number of cells of all scales.
struct HierarchicalQuantizeOutput {
  at::Tensor quantized;             ///< (B, P, D), the dtype of rows
  at::Tensor loss;                  ///< (), the mean over scales; 0 if not in training
  at::Tensor tokens;                ///< (B, N, D), scale after scale, no gradient; in training
  at::Tensor token_indices;         ///< (B, N), int64, their codes; in training
  std::vector<at::Tensor> indices;  ///< (B, L) of each scale, int64
};

/// Quantizes a map scale by scale, each the residual of the ones before.
///
/// Formula   t_n = pool_scale(r_n), q_n = the nearest codes of t_n, m_n = spread_scale(q_n),
///           r_{n+1} = r_n - m_n; quantized = sum m_n, loss = weight mean_n mean((t_n - q_n)^2)
/// Paper     Tian et al. 2024, VAR, arXiv:2404.02905, algorithms 1 and 2
///
/// @param rows          (B, P, D), the map position by position, float32 or float64.
/// @param full          its positions along one to three axes, P their product.
/// @param codebooks     (1, K, D) of each scale, floating point.
/// @param convolutions  at least one.
///
/// Gradient     to rows through the estimator at each scale, and to weights and biases; none to the
///              codebooks. Twice differentiable but for the rotation trick. On the CPU the scales are one
///              node of the graph outside of compilers, transforms and checkpoints.
/// Empty        no batch: empty, loss 0; a map without positions has zeros for tokens.
/// Ties         the code with the smallest index.
/// Determinism  bitwise repeatable for any number of threads, as far as torch's products are.
/// Throws       c10::ValueError for bad shapes and names, c10::TypeError for bad dtypes.
TORCHVQ_API HierarchicalQuantizeOutput hierarchical_quantize(
    const at::Tensor& rows, c10::SymIntArrayRef full, const std::vector<at::Tensor>& codebooks,
    const ScaleConvolutions& convolutions, const HierarchicalQuantizeOptions& options);

}  // namespace torchvq::functional
