// Shared by all kernels of residual_beam_search: argument checks, the common form for computation,
// greedy search, and the search in plain ATen.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Checks what residual_beam_search and sampled_beam_search have in common.
void check_beam_arguments(const char* op, const at::Tensor& x, at::TensorList codebooks,
                          int64_t beam, const std::optional<at::Tensor>& mask,
                          const std::optional<at::Tensor>& depth, at::ArrayRef<double> weights);

void check_residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& depth,
                                at::ArrayRef<double> weights);

/// Checked arguments in the dtype of the computation.
struct BeamProblem {
  BeamProblem(const char* op, const at::Tensor& x, at::TensorList codebooks, int64_t beam,
              const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& depth,
              at::ArrayRef<double> weights);

  at::Tensor x;                       ///< (H, T, D), contiguous
  std::vector<at::Tensor> codebooks;  ///< levels in use (H, K, D), contiguous
  int64_t beam = 1;
  std::vector<double> weights;  ///< per level, or empty
  int64_t heads = 0, tokens = 0, dim = 0;
  int64_t levels = 0;  ///< number of levels in all; codebooks.size() are in use

  /// Whether a single path takes the nearest code of every level.
  bool greedy() const;
};

/// Indices (H, T, levels in use) by greedy search.
at::Tensor greedy_search(const BeamProblem& problem);

/// Indices (H, T, levels in use) in plain ATen.
at::Tensor beam_search_any(const BeamProblem& problem);

/// Appends -1 for levels that are not in use, and writes -1 for masked tokens.
at::Tensor complete_beam_indices(const BeamProblem& problem, const at::Tensor& indices,
                                 const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
