// What all kernels of residual_encode share: argument checks, and the form that they compute on.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

using ResidualEncodeTensors = std::tuple<at::Tensor, at::Tensor>;

void check_residual_encode(const at::Tensor& x, at::TensorList codebooks, std::string_view metric,
                           const std::optional<at::Tensor>& depth,
                           const std::optional<at::Tensor>& mask);

/// Checked arguments in the computation's dtype.
struct ResidualEncodeProblem {
  ResidualEncodeProblem(const at::Tensor& x, at::TensorList codebooks, std::string_view metric,
                        const std::optional<at::Tensor>& depth,
                        const std::optional<at::Tensor>& mask);

  at::Tensor x;                       ///< (H, T, D), contiguous
  std::vector<at::Tensor> codebooks;  ///< of the levels in use (H, K, D), contiguous
  at::Tensor mask;                    ///< (H, T), contiguous, or undefined
  bool cosine = false;
  int64_t heads = 0, tokens = 0, dim = 0;
  int64_t levels = 0;  ///< in all; those in use are codebooks.size()
};

}  // namespace torchvq::detail
