// What all kernels of residual_beam_search share: argument checks, the form that they compute on,
// the search without a beam, and the search in plain ATen.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

void check_residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& depth,
                                at::ArrayRef<double> weights);

/// Checked arguments in the computation's dtype.
struct BeamProblem {
  BeamProblem(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
              const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& depth,
              at::ArrayRef<double> weights);

  at::Tensor x;                       ///< (H, T, D), contiguous
  std::vector<at::Tensor> codebooks;  ///< of the levels in use (H, K, D), contiguous
  int64_t beam = 1;
  std::vector<double> weights;  ///< per level, or empty
  int64_t heads = 0, tokens = 0, dim = 0;
  int64_t levels = 0;  ///< in all; those in use are codebooks.size()

  /// One path all the way, each step of which is the nearest code.
  bool greedy() const;
};

/// Indices (H, T, levels in use) without a beam.
at::Tensor greedy_search(const BeamProblem& problem);

/// Indices (H, T, levels in use) in plain ATen.
at::Tensor beam_search_any(const BeamProblem& problem);

/// Appends -1 for the levels that are not in use, and writes it for tokens that are not real.
at::Tensor complete_beam_indices(const BeamProblem& problem, const at::Tensor& indices,
                                 const std::optional<at::Tensor>& mask);

}  // namespace torchvq::detail
