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
                           const std::optional<at::Tensor>& mask,
                           std::optional<at::TensorList> prepared);

/// Checked arguments in the computation's dtype. Where heads share all codebooks, their tokens are
/// those of one head.
struct ResidualEncodeProblem {
  ResidualEncodeProblem(const at::Tensor& x, at::TensorList codebooks, std::string_view metric,
                        const std::optional<at::Tensor>& depth,
                        const std::optional<at::Tensor>& mask,
                        std::optional<at::TensorList> prepared);

  /// The results (H, T, ...) of all heads that x came with.
  ResidualEncodeTensors of_all_heads(const at::Tensor& quantized, const at::Tensor& indices) const;

  at::Tensor x;                       ///< (H, T, D), contiguous
  std::vector<at::Tensor> codebooks;  ///< of the levels in use (H, K, D) or, of 1 head, (K, D)
  std::vector<at::Tensor> prepared;   ///< of each of them (bytes,) or (H, bytes), or none
  at::Tensor mask;                    ///< (H, T), contiguous, or undefined
  bool cosine = false;
  int64_t heads = 0, tokens = 0, dim = 0;
  int64_t levels = 0;  ///< in all; those in use are codebooks.size()

 private:
  int64_t given_heads_ = 0, given_tokens_ = 0;
};

}  // namespace torchvq::detail
